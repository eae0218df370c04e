"""The record of models that take long to answer."""

from providers.long_answers import LongAnswers
from tenants.directory import Route, UpstreamEndpoint


def route(model: str) -> Route:
    upstream = UpstreamEndpoint(id="up", base_url="http://a.example/v1", api_key="")
    return Route(model="public", upstream_model=model, upstream=upstream)


def test_a_model_streams_for_a_while_after_a_long_answer() -> None:
    now = [100.0]
    known = LongAnswers(now=lambda: now[0])
    known.observe(route("slow"), 31.0)
    known.observe(route("quick"), 2.0)
    assert (known.come_from(route("slow")), known.come_from(route("quick"))) == (True, False)
    now[0] += 599
    assert known.come_from(route("slow"))
    now[0] += 2
    assert not known.come_from(route("slow"))


def test_the_record_is_emptied_when_it_is_full() -> None:
    known = LongAnswers(now=lambda: 0.0)
    for number in range(1001):
        known.observe(route(f"model-{number}"), 60.0)
    assert known.come_from(route("model-1000"))
    assert not known.come_from(route("model-0"))
