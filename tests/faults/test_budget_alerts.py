"""Budget alerts from a call of a client to the lead's mail and the team's webhook receiver."""

import json

from pytest_django import Settings

from billing.budget_alerts import send_alerts
from tenants.prices import PriceList
from tests.docs.api_samples import fits
from tests.docs.blocks import ROOT, blocks
from tests.support.api import Api, Caller
from tests.support.chunks import chunk, usage
from tests.support.limits import limit
from tests.support.mail import add_person, use_mail
from tests.support.model_capabilities import describe
from tests.support.smtp_server import running_smtp_server
from tests.support.upstream import Script, stream
from tests.support.webhooks import add_endpoint, delivering, running_receiver


def test_crossing_a_percentage_notifies_the_lead_and_the_webhook(
    api: Api, caller: Caller, script: Script, settings: Settings
) -> None:
    describe(script, prices=PriceList.simple(input="0", output="1"))
    limit(caller, of="team", budget="0.00001", is_hard=False)
    person = add_person(caller)
    with running_smtp_server() as smtp, running_receiver() as receiver, delivering():
        use_mail(settings, smtp)
        made = add_endpoint(caller, receiver.url, "budget.alert")
        script.then(stream(chunk(content="Hello"), chunk(finish="stop"), usage(prompt_tokens=3, completion_tokens=8)))
        api.create(model=script.model, input="Hi")
        send_alerts()
        requests = receiver.wait_for(2)
        events = [request.unwrap(made.secret) for request in requests]
        mails = smtp.wait_for(2)
    assert sorted((event.type, event.data.percent, event.data.spent) for event in events) == [
        ("budget.alert", 50, "0.0000080000"),
        ("budget.alert", 80, "0.0000080000"),
    ]
    [documented] = [block for block in blocks(ROOT / "docs/howto/notifications.md") if block.language == "json"]
    assert all(fits(json.loads(documented.text), json.loads(request.body)) for request in requests)
    assert {mail["to"] for mail in mails} == {person.email}
    assert sorted(mail["subject"].split(" of")[0] for mail in mails) == ["50 %", "80 %"]
