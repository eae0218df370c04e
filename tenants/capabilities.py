"""Capabilities of models, as configured by the operator.

Capabilities decide which features of a request are forwarded, emulated or rejected. They are stored in columns of
`tenants.models.Model`; a route has them as a `Capabilities` value. The defaults suit an unknown server of the Chat
Completions API.
"""

from dataclasses import dataclass, fields
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models


class StructuredOutput(models.TextChoices):
    """Support of a model for `response_format`."""

    CHECKED = "checked", "Accepted: output is validated before it is sent, and repaired once"
    NATIVE = "native", "Enforced by the upstream: output is streamed immediately"
    PROMPTED = "prompted", "Not supported: requested in the prompt, validated, and repaired once"


class TokenCounting(models.TextChoices):
    """Method of counting the tokens of an input."""

    ESTIMATE = "", "Estimate: four characters per token"
    TOKENIZE = "tokenize", "The upstream's /tokenize (vLLM)"
    RESPONSES = "responses", "The upstream's /responses/input_tokens"


class OutputLimit(models.TextChoices):
    """Parameter of a chat completion that limits its output."""

    BY_PROVIDER = "", "As the provider's documentation says"
    MAX_TOKENS = "max_tokens", "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens", "max_completion_tokens"


class AssistantPrefix(models.TextChoices):
    """Support of a model for a request whose last message is the beginning of its answer."""

    NONE = "", "Not supported: the answer is repeated from its beginning"
    LAST_MESSAGE = "last_message", "The last message is continued (Anthropic, llama.cpp)"
    CONTINUE_FINAL_MESSAGE = "continue_final_message", "With continue_final_message (vLLM, SGLang)"
    PREFIX = "prefix", "With prefix: true (DeepSeek beta)"
    REPEATED_PREFIX = "repeated_prefix", "With prefix: true, and repeated in the answer (Mistral)"


class ReasoningHistory(models.TextChoices):
    """The part of its earlier reasoning that a model receives again."""

    BY_PROVIDER = "", "As the provider's documentation says"
    NONE = "none", "None"
    CURRENT_TURN = "current_turn", "That since the last message of the user"
    ALL_TURNS = "all_turns", "All"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a model. None means that a limit is unknown."""

    vision: bool = True
    max_images: int | None = None
    inline_images: bool = True
    files: bool = False
    developer_role: bool = False
    custom_tools: bool = False
    forced_tool_choice: bool = True
    structured_output: str = StructuredOutput.CHECKED.value
    logprobs: bool = True
    always_stream: bool = False
    extra_sampling: bool = False
    reasoning_efforts: tuple[str, ...] | None = None
    reasoning_summaries: bool = False
    raw_reasoning: bool = True
    reasoning_field: str = ""
    reasoning_history: str = ReasoningHistory.BY_PROVIDER.value
    output_limit: str = OutputLimit.BY_PROVIDER.value
    think_tags: bool = False
    context_window: int | None = None
    max_output_tokens: int | None = None
    max_image_tokens: int | None = None
    max_audio_seconds: int | None = None
    token_counting: str = TokenCounting.ESTIMATE.value
    assistant_prefix: str = AssistantPrefix.NONE.value


class CapabilityColumns(models.Model):
    """Abstract model with the columns of `Capabilities`."""

    vision = models.BooleanField(default=True, help_text="Accepts images. If off, requests with images are rejected.")
    max_images = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum number of images in one request. Empty means no limit."
    )
    inline_images = models.BooleanField(
        default=True,
        help_text="The platform downloads images by URL and sends their content. If off, the upstream gets the URL: "
        "turn this off only for an upstream that cannot reach your private networks.",
    )
    files = models.BooleanField(
        default=False, help_text="Accepts files. If off, the platform extracts their text and sends that."
    )
    developer_role = models.BooleanField(
        default=False, help_text="Accepts the developer role. If off, developer messages are sent as system messages."
    )
    custom_tools = models.BooleanField(
        default=False, help_text="Accepts custom tools. If off, they are emulated with functions."
    )
    forced_tool_choice = models.BooleanField(
        default=True,
        help_text="Accepts tool_choice values other than auto and none. If off, they are requested in the prompt and "
        "checked.",
    )
    structured_output = models.CharField(
        max_length=20,
        choices=StructuredOutput.choices,
        default=StructuredOutput.CHECKED,
        help_text="Handling of response_format.",
    )
    logprobs = models.BooleanField(
        default=True, help_text="Returns log probabilities. If off, requests for them are rejected."
    )
    always_stream = models.BooleanField(
        default=False,
        help_text="Answers are always requested as a stream, also for JSON requests. Needed if the server only "
        "streams, or if a proxy in front of it closes connections on which nothing is sent for a while.",
    )
    extra_sampling = models.BooleanField(
        default=False, help_text="Accepts vLLM's top_k, min_p, seed, repetition_penalty and chat_template_kwargs."
    )
    reasoning_efforts = ArrayField(
        models.CharField(max_length=20),
        null=True,
        blank=True,
        help_text="Supported values of reasoning.effort. Empty forwards any value.",
    )
    reasoning_summaries = models.BooleanField(default=False, help_text="The upstream supports reasoning summaries.")
    raw_reasoning = models.BooleanField(
        default=True, help_text="Clients see raw reasoning. If off, they see only its encrypted form."
    )
    reasoning_field = models.CharField(
        max_length=40,
        blank=True,
        default="",
        help_text="Field of assistant messages in which earlier reasoning is sent back, such as reasoning_content. "
        "Empty: as the provider's documentation says, and none to unknown servers.",
    )
    reasoning_history = models.CharField(
        max_length=20,
        blank=True,
        choices=ReasoningHistory.choices,
        default=ReasoningHistory.BY_PROVIDER,
        db_default="",
        help_text="Earlier reasoning that the model gets back, if the request does not choose with reasoning.context.",
    )
    output_limit = models.CharField(
        max_length=30,
        blank=True,
        choices=OutputLimit.choices,
        default=OutputLimit.BY_PROVIDER,
        db_default="",
        help_text="Parameter that limits the output of a chat completion. Unknown servers get max_tokens.",
    )
    think_tags = models.BooleanField(
        default=False, help_text="The model writes its reasoning between <think> tags at the start of its text."
    )
    context_window = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum number of input and output tokens. Empty means unknown."
    )
    max_output_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Maximum number of output tokens of one answer, or of one generated image. Hard budgets reserve it "
        "for calls that state no maximum. Empty means the context window.",
    )
    max_image_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Maximum number of input tokens of one image. Hard budgets reserve it. Empty means the context "
        "window.",
    )
    max_audio_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Maximum length of one audio file in seconds. Hard budgets reserve it for compressed audio. Empty "
        "means unknown.",
    )
    token_counting = models.CharField(
        max_length=20,
        blank=True,
        choices=TokenCounting.choices,
        default=TokenCounting.ESTIMATE,
        help_text="Method of counting input tokens.",
    )
    assistant_prefix = models.CharField(
        max_length=30,
        blank=True,
        choices=AssistantPrefix.choices,
        default=AssistantPrefix.NONE,
        db_default="",
        help_text="Continuation of an answer that another target has begun: the text that was sent is the beginning of "
        "its answer.",
    )

    class Meta:
        abstract = True

    def capabilities(self) -> Capabilities:
        """Return the columns as one value."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Capabilities)}
        efforts = values["reasoning_efforts"]
        values["reasoning_efforts"] = tuple(efforts) if efforts else None
        return Capabilities(**values)
