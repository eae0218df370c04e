"""`GET /v1/conversations/{id}/export`, an extension of the API."""

import httpx2
import orjson

from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.conversations import begin, ids
from tests.support.items import SAMPLES
from tests.support.web import WebProcess

WHOLE = [item for name, item in SAMPLES.items() if name not in {"cmp_1", "rs_1"}]


def export(api: Api, conversation_id: str) -> list[dict[str, object]]:
    """Return the parsed lines."""
    answer = api.get(f"/conversations/{conversation_id}/export")
    assert answer.status_code == 200, answer.text
    assert answer.content.endswith(b"\n") or not answer.content
    return [orjson.loads(line) for line in answer.content.splitlines()]


def test_every_item_is_a_line_with_all_stored_fields(api: Api) -> None:
    mine = ok(api.post("/conversations", {"items": WHOLE[:20]}))["id"]
    ok(api.post(f"/conversations/{mine}/items", {"items": WHOLE[20:]}))
    assert export(api, mine) == WHOLE


def test_the_export_is_a_json_lines_download(api: Api) -> None:
    mine = begin(api, "Hi")
    answer = api.get(f"/conversations/{mine}/export")
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["content-disposition"] == f'attachment; filename="{mine}.jsonl"'


def test_a_long_conversation_is_exported_completely_and_in_order(api: Api) -> None:
    mine = begin(api, *map(str, range(250)))
    ok(api.delete(f"/conversations/{mine}/items/{ids(api, mine)[99]}"))
    texts = [line["content"][0]["text"] for line in export(api, mine)]  # type: ignore[index]
    assert texts == [str(number) for number in range(250) if number != 99]


def test_an_empty_conversation_has_no_lines(api: Api) -> None:
    assert export(api, begin(api)) == []


def test_an_export_works_under_daphne(daphne_web: WebProcess, http: httpx2.Client, caller: Caller) -> None:
    api = Api(http, url=daphne_web.url, caller=caller)
    assert len(export(api, begin(api, *map(str, range(120))))) == 120


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = (outsider.get(f"/conversations/{name}/export") for name in (mine, "conv_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


def test_exporting_requires_the_read_scope(api: Api, make_api: MakeApi) -> None:
    writer = make_api(team=api.caller.team, scopes=["conversations.write"])
    assert error(writer.get(f"/conversations/{begin(api)}/export")) == (403, None, "insufficient_scope")


def test_unknown_query_parameters_are_rejected(api: Api) -> None:
    assert error(api.get(f"/conversations/{begin(api)}/export", limit=1)) == (400, "limit", "unknown_parameter")
