"""Usage records of chat completions with several targets: who answered, and why not the first."""

import re

import pytest
from django.test import Client

from tenants import scope
from tenants.models import UsageRecord
from tests.admin.rows import text
from tests.support.api import Api, ok
from tests.support.chunks import chunk
from tests.support.chunks import text as chunks
from tests.support.targets import Targets, events_of, is_complete, post, upstream_id
from tests.support.upstream import Answer, Cut, refusal, stream

PATH = "/chat/completions"


def records(targets: Targets) -> list[UsageRecord]:
    """Return the usage records of the model, oldest first."""
    with scope.every_team():
        return list(UsageRecord.objects.filter(model=targets.name).order_by("pk"))


def shown(client: Client, record: UsageRecord) -> str:
    """Return the line about the targets on the page of a usage record."""
    page = text(client.get(f"/admin/tenants/usagerecord/{record.pk}/change/"))
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_page_of_a_record_names_the_targets_tried_before(operator: Client, api: Api, targets: Targets) -> None:
    first = targets.add().then(refusal(401, "Wrong key."))
    targets.unreachable()
    third = targets.add().say("Hello")
    ok(post(api, PATH, targets.name))
    lost, record = records(targets)
    assert (lost.upstream_id, lost.failed_targets) == (upstream_id(first), None)
    assert record.upstream_id == upstream_id(third)
    line = (
        f"Answered by up-{third.model} ({third.model}); tried before: up-{first.model}: HTTP 401; "
        f"up-{targets.scripts[1].model}: not reached"
    )
    assert line in shown(operator, record)
    answered = text(operator.get("/admin/tenants/usagerecord/", {"object_id": record.object_id}))
    assert f"{third.model}, after another target" in answered


def test_a_stream_that_was_cut_names_the_target_that_began_it(operator: Client, api: Api, targets: Targets) -> None:
    first = targets.add().then(Answer(pieces=[chunk(role="assistant", content="Hel"), Cut()]))
    targets.add().then(stream(*chunks("Hello")))
    answer = post(api, PATH, targets.name, stream=True)
    assert is_complete(PATH, answer), events_of(answer)
    record = records(targets)[-1]
    assert f"tried before: up-{first.model}: answer cut" in shown(operator, record)


def test_a_completion_that_no_target_answers_names_all(operator: Client, api: Api, targets: Targets) -> None:
    first, second = targets.add().then(refusal(401)), targets.add().then(refusal(401))
    assert post(api, PATH, targets.name).status_code == 500
    record = records(targets)[-1]
    tried = f"No target answered; tried: up-{first.model}: HTTP 401; up-{second.model}: HTTP 401"
    assert tried in shown(operator, record)
    page = text(operator.get("/admin/routes/"))
    assert f'<a class="c-link" href="/admin/tenants/usagerecord/?object_id={record.object_id}">' in page
    assert "Failed (chat.completions)" not in page.split(f">{targets.name}</h2>", 1)[1].split("</section>")[0]


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_stored_without_a_failure(operator: Client, api: Api, targets: Targets, count: int) -> None:
    for _ in range(count):
        targets.add()
    targets.scripts[0].say("Hello")
    ok(post(api, PATH, targets.name))
    [record] = records(targets)
    assert record.failed_targets is None
    assert "Answered by" not in shown(operator, record)
