"""Prompt templates of a team."""

from typing import Any

from responses.models import PromptTemplate
from responses.requests import prompts
from tenants import scope
from tests.support.api import Caller


def write_prompt(caller: Caller, *texts: str, role: str = "developer", **more: Any) -> PromptTemplate:
    """Create a prompt template with a message per text."""
    with scope.team(caller.team.pk):
        prompt = PromptTemplate.objects.create(team=caller.team, name=f"prompt {PromptTemplate.objects.count()}")
    rewrite_prompt(prompt, *texts, role=role, **more)
    return prompt


def rewrite_prompt(prompt: PromptTemplate, *texts: str, role: str = "developer", **more: Any) -> None:
    """Add a version to a prompt template."""
    messages = [{"role": role, "content": text} for text in texts]
    content = prompts.parse_prompt_content({"messages": messages, **more})
    with scope.team(prompt.team_id):
        prompts.add_version(prompt=prompt, content=content, created_by="lead")
