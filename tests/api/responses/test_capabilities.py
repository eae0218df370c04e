"""Capabilities of a model, as configured by the operator: they decide what is forwarded and what is rejected."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.model_capabilities import describe
from tests.support.upstream import Script

EXTRA: dict[str, Any] = {
    "top_k": 40,
    "seed": 7,
    "repetition_penalty": 1.1,
    "min_p": 0.05,
    "chat_template_kwargs": {"enable_thinking": False},
}


def rejection(api: Api, script: Script, **body: Any) -> tuple[int, str | None, str | None]:
    """Return the error of a request for the script's model; the upstream must not be called."""
    return error(api.post("/responses", {"model": script.model, "input": "Hi", **body}))


def test_extra_sampling_is_forwarded_to_models_that_support_it(api: Api, script: Script) -> None:
    describe(script, extra_sampling=True).say("Hello")
    response = api.create(model=script.model, input="Hi", **EXTRA)
    assert {name: script.bodies[0].get(name) for name in EXTRA} == EXTRA
    assert not EXTRA.keys() & response.keys()


@pytest.mark.parametrize("name", EXTRA)
def test_extra_sampling_is_rejected_for_other_models(api: Api, script: Script, name: str) -> None:
    assert rejection(api, script, **{name: EXTRA[name]}) == (400, name, "unsupported_parameter")


def test_a_supported_reasoning_effort_is_forwarded(api: Api, script: Script) -> None:
    describe(script, reasoning_efforts=["low", "high"]).say("Hello")
    assert api.create(model=script.model, input="Hi", reasoning={"effort": "high"})["reasoning"]["effort"] == "high"
    assert script.bodies[0]["reasoning_effort"] == "high"


def test_an_unsupported_reasoning_effort_is_rejected(api: Api, script: Script) -> None:
    describe(script, reasoning_efforts=["low", "high"])
    assert rejection(api, script, reasoning={"effort": "xhigh"}) == (400, "reasoning.effort", "unsupported_value")


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
@pytest.mark.parametrize("style", ["concise", "detailed"])
def test_a_summary_style_is_rejected_if_the_upstream_cannot_receive_it(
    api: Api, responses_api_script: Script, name: str, style: str
) -> None:
    assert rejection(api, responses_api_script, reasoning={name: style}) == (
        400,
        f"reasoning.{name}",
        "unsupported_value",
    )


def test_logprobs_are_rejected_if_the_model_does_not_support_them(api: Api, script: Script) -> None:
    describe(script, logprobs=False)
    asked = rejection(api, script, include=["message.output_text.logprobs"])
    assert asked == (400, "include", "unsupported_parameter")
    assert rejection(api, script, top_logprobs=2) == (400, "top_logprobs", "unsupported_parameter")


def test_counting_tokens_rejects_unsupported_parameters_too(api: Api, script: Script) -> None:
    describe(script, reasoning_efforts=["low"])
    body = {"model": script.model, "input": "Hi", "reasoning": {"effort": "max"}}
    assert error(api.post("/responses/input_tokens", body)) == (400, "reasoning.effort", "unsupported_value")
