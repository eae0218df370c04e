"""Probes of models: real calls to a scripted server that find out about tools, images and reasoning."""

from typing import Any

from routing.detection import ModelDetails, Support
from routing.probes import Probe, probe_models
from routing.upstream_check import run_sync
from tenants.directory import UpstreamEndpoint
from tests.support.chunks import calls, chunk, text, usage
from tests.support.upstream import Answer, Pause, Script, ScriptedUpstream, refusal, stream

YES, LIMITED, NO, UNKNOWN = Support.YES, Support.LIMITED, Support.NO, Support.UNKNOWN
KEY = "k-secret-0123456789"
PLAIN = stream(*text("Red."))
CALL = stream(*calls(get_weather='{"city": "Lisbon"}'))
REASONED = stream(chunk(role="assistant", content=""), chunk(reasoning_content="17 * 23 is"), *text("391")[1:], usage())


def ability_of(body: dict[str, Any]) -> str:
    """Return the ability that a request probes."""
    if "tools" in body:
        return f"tools {body['tool_choice']}"
    return "reasoning" if "reasoning_effort" in body else "images"


def probed(upstream: ScriptedUpstream, answers: dict[str, Answer]) -> tuple[Probe, Script]:
    """Probe a model whose server answers like this."""
    with upstream.script() as script:
        script.by_request(lambda body: answers[ability_of(body)])
        endpoint = UpstreamEndpoint(id=f"up_{script.model}", base_url=upstream.url, api_key=KEY)
        return run_sync(probe_models(endpoint, [script.model]))[script.model], script


def test_a_model_that_can_do_everything(upstream: ScriptedUpstream) -> None:
    probe, script = probed(upstream, {"tools required": CALL, "images": PLAIN, "reasoning": REASONED})
    assert probe == Probe(details=ModelDetails(tools=YES, images=YES, reasoning=YES), notes={})
    assert len(script.bodies) == 3
    (image,) = [body for body in script.bodies if ability_of(body) == "images"]
    assert image["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")


def test_a_refused_request_means_no_with_the_words_of_the_server(upstream: ScriptedUpstream) -> None:
    answers = {
        "tools required": refusal(400, "tools need --enable-auto-tool-choice"),
        "tools auto": refusal(400, "tools need --enable-auto-tool-choice"),
        "images": refusal(400, f"not a multimodal model, key {KEY}"),
        "reasoning": refusal(400, "reasoning_effort is unknown"),
    }
    probe, _ = probed(upstream, answers)
    assert probe.details == ModelDetails(tools=NO, images=NO, reasoning=NO)
    assert "--enable-auto-tool-choice" in probe.notes["tools"]
    assert "not a multimodal model" in probe.notes["images"]
    assert KEY not in str(probe.notes)


def test_tools_without_a_forced_choice_and_think_tags_are_limited(upstream: ScriptedUpstream) -> None:
    thinking = stream(*text("<think>17 * 23", "</think>", "391"))
    answers = {"tools required": PLAIN, "tools auto": CALL, "images": PLAIN, "reasoning": thinking}
    probe, _ = probed(upstream, answers)
    assert probe.details == ModelDetails(tools=LIMITED, images=YES, reasoning=LIMITED)
    assert probe.notes["tools"] == "The model ignores tool_choice."


def test_answers_without_proof_and_failures_of_the_server_leave_abilities_unknown(upstream: ScriptedUpstream) -> None:
    answers = {
        "tools required": PLAIN,
        "tools auto": PLAIN,
        "images": refusal(500, "Out of memory"),
        "reasoning": PLAIN,
    }
    probe, script = probed(upstream, answers)
    assert probe.details == ModelDetails()
    assert set(probe.notes) == {"tools", "images", "reasoning"}
    assert len(script.bodies) == 4


def test_a_server_that_refuses_everything_says_nothing_about_abilities(upstream: ScriptedUpstream) -> None:
    refused = refusal(400, "max_tokens is too large")
    answers = dict.fromkeys(("tools required", "tools auto", "images", "reasoning"), refused)
    probe, _ = probed(upstream, answers)
    assert probe.details == ModelDetails()
    assert "max_tokens is too large" in probe.notes["images"]


def test_a_rejected_key_leaves_abilities_unknown(upstream: ScriptedUpstream) -> None:
    answers = dict.fromkeys(("tools required", "tools auto", "images", "reasoning"), refusal(401, "Wrong key"))
    probe, _ = probed(upstream, answers)
    assert probe.details == ModelDetails()
    assert "credentials" in probe.notes["tools"]


def test_calls_that_take_too_long_leave_abilities_unknown(upstream: ScriptedUpstream) -> None:
    with upstream.script() as script:
        script.always(stream(Pause(30), *text("Red.")))
        endpoint = UpstreamEndpoint(id=f"up_{script.model}", base_url=upstream.url, api_key=KEY)
        probes = run_sync(probe_models(endpoint, [script.model, "a", "b"], seconds=1))
    assert probes[script.model].details == ModelDetails()
    assert set(probes[script.model].notes.values()) == {"No answer in time."}
