"""The errors of the page about troubleshooting that no single request gets occur with the documented messages."""

import uuid
from collections.abc import Callable

import openai
import pytest
from openai import OpenAI

from launcher.address import any_free_port
from tenants import services
from tests.docs.blocks import ROOT
from tests.docs.refusals import matches, other_messages
from tests.support.api import Caller, MakeCaller
from tests.support.limits import limit
from tests.support.upstream import Script
from tests.support.web import WebProcess

PAGE = ROOT / "docs" / "howto" / "troubleshooting.md"
Errors = dict[str, Callable[[], object]]


@pytest.fixture
def errors(web: WebProcess, script: Script, make_caller: MakeCaller, monkeypatch: pytest.MonkeyPatch) -> Errors:
    """Functions that get the errors, by the beginning of the message."""
    nowhere = f"http://127.0.0.1:{any_free_port()}/v1"
    model = script.model

    def sdk(caller: Caller, **options: object) -> OpenAI:
        return OpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0, **options)  # type: ignore[arg-type]

    def limited() -> None:
        caller = make_caller()
        limit(caller, requests_per_minute=1)
        script.say("Hello")
        for _ in range(2):
            sdk(caller).responses.create(model=model, input="Hi")

    def unreachable() -> None:
        services.add_upstream(name=f"gone {uuid.uuid4().hex}", base_url=nowhere, models=[model])
        sdk(make_caller()).responses.create(model=model, input="Hi")

    def without_key() -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        OpenAI(base_url=f"{web.url}/v1").models.list()

    return {
        "Connection error.": OpenAI(base_url=nowhere, api_key="x", max_retries=0).models.list,
        "Missing credentials.": without_key,
        "Request timed out.": sdk(make_caller(), timeout=0.001).models.list,
        "Your API key is missing": lambda: sdk(make_caller(scopes=["models.read"])).responses.create(
            model=model, input="Hi"
        ),
        "The model's server": unreachable,
        "Rate limit": limited,
    }


@pytest.mark.parametrize("documented", other_messages(PAGE))
def test_the_documented_message_is_that_of_the_error(errors: Errors, documented: str) -> None:
    [provoke] = [provoke for start, provoke in errors.items() if documented.startswith(start)]
    with pytest.raises(openai.OpenAIError) as raised:
        provoke()
    error = raised.value
    body = error.body if isinstance(error, openai.APIStatusError) else None
    message = str(body["message"]) if isinstance(body, dict) else str(error)
    assert matches(message, documented), message
