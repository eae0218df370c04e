"""`manage.py create_prompt`: create a prompt of a team from a file, or add a version to it."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from typing_extensions import override

from core.errors import BadRequest
from responses.models import PromptTemplate
from responses.requests import prompts
from responses.tools import registry  # noqa: F401 - adds the hosted tools to the schema of requests
from tenants import scope, services
from tenants.audit import audit


class Command(BaseCommand):
    """Creates the prompt, or adds a version to the one of this name if its content differs from the current one."""

    help = "Create a prompt of a team, or add a version to the one of this name. Prints the id of the prompt."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--team", required=True)
        parser.add_argument("--name", required=True)
        parser.add_argument(
            "file", help="JSON object with messages, and optionally model and parameters; - reads standard input"
        )
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        content = _read(options["file"])
        team = services.ensure_team(name=options["team"])
        with scope.team(team.pk), transaction.atomic():
            prompt, created = PromptTemplate.objects.get_or_create(team=team, name=options["name"])
            current = prompt.versions.filter(number=prompt.current).first()
            values = content.model_dump()
            if current is None or any(getattr(current, name) != value for name, value in values.items()):
                current = prompts.add_version(prompt=prompt, content=content, created_by="manage.py")
                action = "prompt.created" if created else "prompt.version_added"
                # Messages are content, which the audit log does not contain.
                audit(
                    team_id=team.pk,
                    actor="manage.py",
                    action=action,
                    target=prompt.pk,
                    after={"name": prompt.name, "version": current.number},
                )
        shown = {"team": team.pk, "prompt": prompt.pk, "version": current.number}
        self.stdout.write(json.dumps(shown) if options["json"] else prompt.pk)


def _read(name: str) -> prompts.PromptContent:
    try:
        values = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"{name} is not valid JSON.") from error
    if not isinstance(values, dict):
        raise CommandError(f"{name} does not contain a JSON object.")
    try:
        return prompts.parse_prompt_content(values)
    except BadRequest as error:
        raise CommandError(f"{error.param}: {error.message}" if error.param else error.message) from error
