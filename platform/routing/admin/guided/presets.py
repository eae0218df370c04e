"""Addresses of well-known servers, as their documentation states them."""

from typing import NamedTuple
from urllib.parse import urlsplit

from tenants.models import WireApi

_CHAT, _RESPONSES = WireApi.CHAT_COMPLETIONS.value, WireApi.RESPONSES.value


class Preset(NamedTuple):
    """A well-known server. `name` is the suggested name of the upstream; capital letters in `url` are placeholders."""

    title: str
    name: str
    url: str
    api: str = _CHAT


PRESETS = (
    ("Providers", (
        Preset("OpenAI", "openai", "https://api.openai.com/v1", _RESPONSES),
        Preset("Azure OpenAI", "azure", "https://RESOURCE.openai.azure.com/openai/v1", _RESPONSES),
        Preset("Anthropic, OpenAI-compatible", "anthropic", "https://api.anthropic.com/v1"),
        Preset("Gemini, OpenAI-compatible", "gemini", "https://generativelanguage.googleapis.com/v1beta/openai"),
        Preset("Mistral", "mistral", "https://api.mistral.ai/v1"),
        Preset("DeepSeek", "deepseek", "https://api.deepseek.com/v1"),
        Preset("OpenRouter", "openrouter", "https://openrouter.ai/api/v1"),
        Preset("Groq", "groq", "https://api.groq.com/openai/v1"),
    )),
    ("Servers of your own", (
        Preset("vLLM", "vllm", "http://HOST:8000/v1"),
        Preset("SGLang", "sglang", "http://HOST:30000/v1"),
        Preset("Ollama", "ollama", "http://HOST:11434/v1"),
        Preset("llama.cpp", "llama-cpp", "http://HOST:8080/v1"),
        Preset("LM Studio", "lm-studio", "http://HOST:1234/v1"),
        Preset("LiteLLM", "litellm", "http://HOST:4000/v1"),
    )),
)  # fmt: skip

_LONGEST = 100


def suggested_name(address: str) -> str:
    """Return a name for the upstream at this address: that of a well-known server, or the host."""
    presets = (preset for _, group in PRESETS for preset in group)
    return next((preset.name for preset in presets if preset.url == address), urlsplit(address).netloc[:_LONGEST])
