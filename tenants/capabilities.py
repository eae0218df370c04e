"""What a model can do, as its operator says: it decides what is forwarded, what is done here, and what is refused.

The columns stand in `tenants.models.Model`; `Capabilities` is what a route carries of them. The defaults suit a server
of chat completions of which nothing is known.
"""

from dataclasses import dataclass, fields
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models


class StructuredOutput(models.TextChoices):
    """How far a model's `response_format` can be trusted."""

    CHECKED = "checked", "Accepted: an answer is held back until it was checked, and repaired once"
    NATIVE = "native", "Enforced by the upstream: an answer is streamed as it comes"
    PROMPTED = "prompted", "Unknown to the upstream: asked for in words, checked, and repaired once"


class TokenCounting(models.TextChoices):
    """Who counts the tokens of an input."""

    ESTIMATE = "", "Nobody: four characters are a token"
    TOKENIZE = "tokenize", "The upstream's /tokenize (vLLM)"
    RESPONSES = "responses", "The upstream's /responses/input_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model can do. `None` as a limit: none is known."""

    vision: bool = True
    max_images: int | None = None
    inline_images: bool = False
    files: bool = False
    developer_role: bool = False
    custom_tools: bool = False
    forced_tool_choice: bool = True
    structured_output: str = StructuredOutput.CHECKED.value
    logprobs: bool = True
    extra_sampling: bool = False
    reasoning_efforts: tuple[str, ...] | None = None
    reasoning_summaries: bool = False
    raw_reasoning: bool = True
    reasoning_field: str = ""
    think_tags: bool = False
    context_window: int | None = None
    token_counting: str = TokenCounting.ESTIMATE.value


class CapabilityColumns(models.Model):
    """The columns of `Capabilities`."""

    vision = models.BooleanField(default=True, help_text="Reads images. Off: a request with an image is refused.")
    max_images = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many images one request may hold; empty: any number."
    )
    inline_images = models.BooleanField(
        default=False, help_text="The platform fetches images by URL and sends their bytes. Off: the URL is sent on."
    )
    files = models.BooleanField(
        default=False, help_text="Reads files itself. Off: the platform extracts their text and sends that."
    )
    developer_role = models.BooleanField(
        default=False, help_text="Knows messages of the role developer. Off: they are sent as system messages."
    )
    custom_tools = models.BooleanField(
        default=False, help_text="Knows custom tools. Off: they are emulated with functions."
    )
    forced_tool_choice = models.BooleanField(
        default=True, help_text="Knows tool_choice other than auto and none. Off: it is asked for in words and checked."
    )
    structured_output = models.CharField(
        max_length=20,
        choices=StructuredOutput.choices,
        default=StructuredOutput.CHECKED,
        help_text="What becomes of response_format.",
    )
    logprobs = models.BooleanField(default=True, help_text="Gives log probabilities. Off: asking for them is refused.")
    extra_sampling = models.BooleanField(
        default=False, help_text="Knows top_k, min_p, seed, repetition_penalty and chat_template_kwargs, as vLLM does."
    )
    reasoning_efforts = ArrayField(
        models.CharField(max_length=20),
        null=True,
        blank=True,
        help_text="The values of reasoning.effort that it knows; empty: whatever the client sends is sent on.",
    )
    reasoning_summaries = models.BooleanField(
        default=False, help_text="The upstream can summarise reasoning in the style that the client asks for."
    )
    raw_reasoning = models.BooleanField(
        default=True, help_text="Clients see the reasoning itself. Off: only its encrypted form."
    )
    reasoning_field = models.CharField(
        max_length=40,
        blank=True,
        default="",
        help_text="The field of an assistant message in which earlier reasoning is sent back, such as "
        "reasoning_content; empty: it is not.",
    )
    think_tags = models.BooleanField(
        default=False, help_text="Writes its reasoning between <think> tags at the beginning of its text."
    )
    context_window = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens that fit into one request with its answer; empty: not known."
    )
    token_counting = models.CharField(
        max_length=20,
        blank=True,
        choices=TokenCounting.choices,
        default=TokenCounting.ESTIMATE,
        help_text="Who counts the tokens of an input.",
    )

    class Meta:
        abstract = True

    def capabilities(self) -> Capabilities:
        """The columns as one value."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Capabilities)}
        efforts = values["reasoning_efforts"]
        values["reasoning_efforts"] = tuple(efforts) if efforts else None
        return Capabilities(**values)
