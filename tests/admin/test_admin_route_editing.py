"""The page of a route: edits are kept in the form until they are saved together."""

import html
import re
from typing import Any

import pytest
from django.test import Client

from tenants import scope
from tenants.models import AuditEvent, Model, Upstream
from tests.admin.rows import text
from tests.support.api import Caller
from tests.support.html_forms import form_values
from tests.support.targets import Targets

PAGE = "/admin/routes/edit/"


class Editor:
    """The form of a route in a browser without scripts."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.url = f"{PAGE}?model={name}"
        self.page = ""
        self.values: dict[str, Any] = {}
        self.open()

    def open(self) -> None:
        """Load the stored route."""
        self._show(self.client.get(self.url))

    def press(self, action: str, **values: str) -> "Editor":
        """Submit the form with a button, and follow a redirect."""
        self._show(self.client.post(self.url, {**self.values, **values, "action": action}, follow=True))
        return self

    def fill(self, upstream_id: str, **values: str) -> "Editor":
        """Enter values of a target."""
        self.values |= {f"{upstream_id}-{name}": [value] for name, value in values.items()}
        return self

    @property
    def preview(self) -> str:
        """The sentences about the effect."""
        [shown] = re.findall(r'<div id="route-preview".*?</div>', self.page, re.DOTALL)
        return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", shown).split()))

    @property
    def priorities(self) -> dict[str, str]:
        """The priorities in the form, by upstream, in the order of the page."""
        return {pk: self.values[f"{pk}-priority"][0] for pk in self.values["target"]}

    def _show(self, answer: Any) -> None:
        assert answer.status_code == 200
        self.page = text(answer)
        self.values = form_values(self.page, "route-form")


def upstream_of(targets: Targets, number: int) -> Upstream:
    """Return the upstream of a target."""
    return Upstream.objects.get(name=f"up-{targets.scripts[number].model}")


def ids(targets: Targets) -> list[str]:
    """Return the ids of the upstreams of the targets."""
    return [upstream_of(targets, number).pk for number in range(len(targets.scripts))]


def stored(name: str) -> dict[str, tuple[int, int]]:
    """Return priority and weight of the stored targets, by upstream."""
    return {row.upstream_id: (row.priority, row.weight) for row in Model.objects.filter(name=name)}


def audited(name: str, after: int = 0) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the audit lines about the targets of a model."""
    rows = [str(pk) for pk in Model.objects.filter(name=name).values_list("pk", flat=True)]
    with scope.every_team():
        found = AuditEvent.objects.filter(target__in=rows, pk__gt=after).order_by("pk")
        return [(event.action, event.before, event.after) for event in found]


def test_only_operators_edit_a_route(
    admin: Client, operator: Client, platform_auditor: Client, lead: Client, targets: Targets
) -> None:
    targets.two()
    url = f"{PAGE}?model={targets.name}"
    assert [client.get(url).status_code for client in (admin, operator, platform_auditor, lead)] == [200, 200, 403, 403]
    assert [client.post(url, {"action": "save"}).status_code for client in (platform_auditor, lead)] == [403, 403]
    assert len(stored(targets.name)) == 2


def test_unknown_models_are_not_found(operator: Client) -> None:
    for name in ("no-such-model", "no%00such"):
        assert operator.get(f"{PAGE}?model={name}").status_code == 404
    assert operator.get(PAGE).headers["Location"] == "/admin/routes/"


def test_the_page_is_linked_from_the_routes_and_the_models(operator: Client, targets: Targets) -> None:
    targets.two()
    address = f"{PAGE}?model={targets.name}"
    row = Model.objects.filter(name=targets.name)[0]
    for url in ("/admin/routes/", f"/admin/tenants/model/?q={targets.name}", f"/admin/tenants/model/{row.pk}/change/"):
        assert address in text(operator.get(url)), url


def test_nothing_is_stored_before_saving(operator: Client, targets: Targets) -> None:
    targets.two()
    before = stored(targets.name)
    first, second = ids(targets)
    editor = Editor(operator, targets.name).press(f"down:{first}").fill(second, weight="7").press("preview")
    editor.press(f"remove:{first}")
    assert editor.values["target"] == [second]
    assert stored(targets.name) == before


def test_a_step_joins_or_leaves_a_priority(operator: Client, targets: Targets) -> None:
    targets.two()
    targets.add()
    first, second, third = ids(targets)
    editor = Editor(operator, targets.name)
    assert editor.priorities == {first: "0", second: "1", third: "2"}
    assert editor.press(f"up:{third}").priorities == {first: "0", second: "1", third: "1"}
    assert editor.press(f"up:{third}").priorities == {first: "0", third: "1", second: "2"}
    assert editor.press(f"up:{third}").priorities == {first: "0", third: "0", second: "2"}
    assert editor.press(f"down:{first}").priorities == {third: "0", first: "1", second: "2"}
    assert editor.press(f"up:{third}").priorities == {third: "0", first: "1", second: "2"}


def test_a_dropped_target_changes_its_priority(operator: Client, targets: Targets) -> None:
    targets.two()
    targets.add()
    first, second, third = ids(targets)
    editor = Editor(operator, targets.name)
    assert editor.press("preview", move=f"join:{third}:0").priorities == {first: "0", third: "0", second: "1"}
    assert editor.press("preview", move=f"before:{second}:0").priorities == {second: "0", first: "1", third: "1"}
    for odd in (f"join:{second}:none", "join:nothing:0", f"join:{second}:99", "odd"):
        assert editor.press("preview", move=odd).priorities == {second: "0", first: "1", third: "1"}


def test_all_changes_are_saved_and_audited_together(operator: Client, targets: Targets) -> None:
    targets.add(weight=3)
    targets.add()
    removed = targets.add()
    with scope.every_team():
        newest = AuditEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    first, second, third = ids(targets)
    removed_row = Model.objects.get(upstream_id=third)
    added = Upstream.objects.create(name=f"new {removed.model}", base_url="http://127.0.0.1:9/v1")
    targets.stack.callback(added.delete)
    editor = Editor(operator, targets.name).press(f"up:{second}").fill(second, weight="2", serves="flex")
    editor.press(f"remove:{third}").press("add", add_upstream=added.pk, add_model="other").press("save")
    assert "was saved" in editor.page
    assert stored(targets.name) == {first: (0, 3), second: (0, 2), added.pk: (1, 1)}
    assert Model.objects.get(upstream=added).upstream_model == "other"
    lines = audited(targets.name, newest)
    assert ("model.updated", {"priority": 1, "weight": 1, "serves": "all"},
            {"priority": 0, "weight": 2, "serves": "flex"}) in lines  # fmt: skip
    assert [action for action, _, _ in lines] == ["model.updated", "model.created"]
    with scope.every_team():
        assert AuditEvent.objects.filter(action="model.deleted", target=str(removed_row.pk)).count() == 1


def test_a_removed_target_that_is_added_again_keeps_its_row(operator: Client, targets: Targets) -> None:
    targets.two(context_window=1234)
    first, _ = ids(targets)
    editor = Editor(operator, targets.name).press(f"remove:{first}").press("add", add_upstream=first)
    model = upstream_of(targets, 0).models.get().upstream_model
    editor.fill(first, upstream_model=model).press("save")
    assert Model.objects.get(upstream_id=first).context_window == 1234


def test_a_route_that_was_changed_meanwhile_is_not_replaced(operator: Client, admin: Client, targets: Targets) -> None:
    targets.two()
    added = targets.add(name=f"{targets.name}-later")
    first, second, third = ids(targets)
    mine, theirs = Editor(operator, targets.name), Editor(admin, targets.name)
    theirs.fill(first, weight="5").press("add", add_upstream=third, add_model=added.model).press("save")
    # The page learns of the change only when it is saved, whatever happens before.
    mine.fill(second, weight="9").press("preview").press("save")
    assert "has changed since you opened it" in mine.page
    assert stored(targets.name) == {first: (0, 5), second: (1, 1), third: (2, 1)}
    assert "priority 0, weight 5" in mine.page
    assert (mine.values[f"{second}-weight"], third in mine.values["target"]) == (["9"], True)
    mine.press("save")
    assert stored(targets.name) == {first: (0, 1), second: (1, 9), third: (2, 1)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight": "-1"}, "greater than or equal to 0"),
        ({"weight": "99999"}, "less than or equal to 32767"),
        ({"priority": "first"}, "Enter a whole number"),
        ({"serves": "gold"}, "Select a valid choice"),
        ({"upstream_model": "m" * 201}, "at most 200 characters"),
    ],
)
def test_invalid_values_are_shown_and_not_saved(
    operator: Client, targets: Targets, values: dict[str, str], message: str
) -> None:
    targets.two()
    before = stored(targets.name)
    first, second = ids(targets)
    editor = Editor(operator, targets.name).fill(second, weight="4")
    for action in ("save", "test"):
        editor.fill(first, **values).press(action)
        assert message in editor.page
        assert "Correct the errors below." in editor.page
    assert editor.values[f"{second}-weight"] == ["4"]
    assert stored(targets.name) == before


def test_a_model_keeps_a_target(operator: Client, targets: Targets) -> None:
    targets.add()
    [only] = ids(targets)
    editor = Editor(operator, targets.name).press(f"remove:{only}")
    assert editor.preview == "No target takes these requests: they fail because the model is not found."
    assert "A model needs a target." in editor.press("save").page
    assert len(stored(targets.name)) == 1


def test_an_upstream_must_be_chosen_for_a_new_target(operator: Client, targets: Targets) -> None:
    targets.add()
    [only] = ids(targets)
    for chosen in ("", "upst_none", "\0", only):
        assert "Choose an upstream" in Editor(operator, targets.name).press("add", add_upstream=chosen).page


def test_fallback_models_are_added_and_removed(operator: Client, targets: Targets) -> None:
    targets.add()
    small = f"{targets.name}-small"
    targets.add(name=small)
    editor = Editor(operator, targets.name).press("add-fallback", add_fallback=small)
    assert editor.preview.endswith(f"if it fails, fallback model {small} at {upstream_of(targets, 1).name}.")
    assert Model.objects.get(name=small).fallback_for == ""
    editor.press("save")
    assert Model.objects.get(name=small).fallback_for == targets.name
    assert f'fallback model of <a class="c-link" href="{PAGE}?model={targets.name}"' in Editor(operator, small).page
    editor.press(f"remove-fallback:{small}").press("save")
    assert Model.objects.get(name=small).fallback_for == ""
    changes = [(before["fallback_for"], after["fallback_for"]) for _, before, after in audited(small)]
    assert changes == [("", targets.name), (targets.name, "")]


def test_a_model_that_is_a_fallback_already_is_refused(operator: Client, targets: Targets) -> None:
    targets.add()
    taken = f"{targets.name}-taken"
    targets.add(name=taken, fallback_for="another")
    editor = Editor(operator, targets.name)
    assert f'<option value="{taken}">' not in editor.page
    editor.press("add-fallback", add_fallback=taken).press("save")
    assert "cannot be a fallback model" in editor.page
    assert "\0" not in editor.press("add-fallback", add_fallback="\0").page
    assert Model.objects.get(name=taken).fallback_for == "another"


def test_the_preview_shows_shares_and_the_order_of_failover(operator: Client, targets: Targets) -> None:
    targets.add(weight=3, priority=0)
    targets.add(weight=2, priority=0)
    targets.add(priority=1)
    targets.add(name=f"{targets.name}-small", fallback_for=targets.name)
    names = [upstream_of(targets, number).name for number in range(4)]
    assert Editor(operator, targets.name).preview == (
        f"60 % of new requests go to {names[0]}, 40 % to {names[1]}; if both fail, {names[2]}, "
        f"then fallback model {targets.name}-small at {names[3]}."
    )


def test_the_preview_leaves_out_drained_and_disabled_targets(operator: Client, targets: Targets) -> None:
    targets.two()
    targets.add()
    first, second, third = ids(targets)
    editor = Editor(operator, targets.name).fill(first, weight="0")
    del editor.values[f"{second}-enabled"]
    assert editor.press("preview").preview == f"All new requests go to {upstream_of(targets, 2).name}."
    assert editor.values["target"] == [first, second, third]


def test_the_preview_begins_with_the_fallback_model_if_all_targets_are_drained(
    operator: Client, targets: Targets
) -> None:
    targets.add(weight=0)
    small = f"{targets.name}-small"
    for weight in (3, 1):
        targets.add(name=small, fallback_for=targets.name, priority=0, weight=weight)
    names = [upstream_of(targets, number).name for number in (1, 2)]
    assert Editor(operator, targets.name).preview == (
        f"75 % of new requests, as fallback model {small}, go to {names[0]}, 25 % to {names[1]}."
    )


def test_the_preview_names_the_targets_of_flex_requests_and_teams(
    operator: Client, targets: Targets, caller: Caller
) -> None:
    targets.add(serves="flex")
    targets.add()
    targets.add(teams=[caller.team])
    cheap, usual, own = (upstream_of(targets, number).name for number in range(3))
    preview = Editor(operator, targets.name).preview
    assert preview == (
        f"All new requests go to {usual}. Flex requests: All new requests go to {cheap}; if it fails, {usual}. "
        f"Team {caller.team.name}: All new requests go to {own}."
    )


def test_names_are_escaped(operator: Client, targets: Targets) -> None:
    targets.add()
    odd = f"<b>{targets.name}</b>&amp;"
    targets.add(name=odd)
    page = text(operator.get(PAGE, {"model": odd}))
    assert f"<b>{targets.name}" not in page
    assert len(form_values(page, "route-form")["target"]) == 1
