"""Connectors in the admin: forms, visibility, and tokens that are never shown."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from tenants import scope
from tenants.models import AuditEvent, Connector, ConnectorVisibility
from tests.admin.conftest import CountQueries
from tests.admin.rows import text
from tests.support.api import Caller, MakeCaller

SECRET = "connector-secret-51ce"
LIST = "/admin/tenants/connector/"
NO_TEAMS = {"connectorvisibility_set-TOTAL_FORMS": "0", "connectorvisibility_set-INITIAL_FORMS": "0"}


@pytest.fixture
def connector(database: None) -> Iterator[Connector]:
    """A connector with a token. Removed after the test, because connectors are not isolated by team."""
    made = Connector.objects.create(
        name=f"c_{uuid.uuid4().hex}", title="Wiki", url="https://wiki.test/mcp", authorization=SECRET
    )
    yield made
    with scope.every_team():
        Connector.objects.filter(pk=made.pk).delete()


def page_url(connector: Connector) -> str:
    """Return the URL of a connector's page."""
    return f"{LIST}{connector.pk}/change/"


def save(client: Client, connector: Connector, **changed: Any) -> Any:
    """Submit the form of a connector."""
    form = {"name": connector.name, "title": connector.title, "url": connector.url, "enabled": "on", **NO_TEAMS}
    return client.post(page_url(connector), {**form, **changed})


def test_no_page_shows_the_token(admin: Client, connector: Connector) -> None:
    pages = [text(admin.get(url)) for url in (LIST, page_url(connector))]
    assert [SECRET in page for page in pages] == [False, False]
    assert "A token is set. Leave this empty to keep it." in pages[1]


def test_an_empty_field_keeps_the_token(admin: Client, connector: Connector) -> None:
    assert save(admin, connector, title="The wiki", new_authorization="").status_code == 302
    kept = Connector.objects.get(pk=connector.pk)
    assert (kept.title, kept.authorization) == ("The wiki", SECRET)


def test_a_new_token_is_encrypted_and_masked_in_the_audit_log(admin: Client, connector: Connector) -> None:
    save(admin, connector, new_authorization="another-secret")
    assert Connector.objects.get(pk=connector.pk).authorization == "another-secret"
    with connection.cursor() as cursor:
        cursor.execute('SELECT "authorization" FROM tenants_connector WHERE id = %s', [connector.pk])
        assert "another-secret" not in cursor.fetchone()[0]
    with scope.every_team():
        line = AuditEvent.objects.get(target=connector.pk, action="connector.updated")
    assert line.after == {"new_authorization": "•••"}


def test_a_token_can_be_removed(admin: Client, connector: Connector) -> None:
    save(admin, connector, forget_authorization="on")
    assert Connector.objects.get(pk=connector.pk).authorization == ""
    assert "forget_authorization" not in text(admin.get(page_url(connector)))


@pytest.mark.parametrize("url", ["wiki.test/mcp", "https://me:secret@wiki.test/mcp", "ftp://wiki.test/"])
def test_an_invalid_address_is_refused(url: str, admin: Client, connector: Connector) -> None:
    answer = save(admin, connector, url=url)
    assert "Enter an http or https URL without user name and password." in text(answer)


@pytest.mark.parametrize("url", ["https://127.1/mcp", "https://wiki.test:99999/", "https://wiki.test\\mcp"])
def test_an_ambiguous_address_is_refused(url: str, admin: Client, connector: Connector) -> None:
    assert save(admin, connector, url=url).status_code == 200
    assert Connector.objects.get(pk=connector.pk).url == connector.url


def test_a_connector_can_be_limited_to_teams(admin: Client, connector: Connector, caller: Caller) -> None:
    rows = {"connectorvisibility_set-TOTAL_FORMS": "1", "connectorvisibility_set-0-team": caller.team.pk}
    rows["connectorvisibility_set-0-connector"] = connector.pk
    assert save(admin, connector, **rows).status_code == 302
    with scope.every_team():
        assert ConnectorVisibility.objects.get(connector=connector).team == caller.team


def test_teams_are_removed_and_added_but_not_changed(
    admin: Client, connector: Connector, make_caller: MakeCaller
) -> None:
    old, kept, new, other = (make_caller().team for _ in range(4))
    with scope.every_team():
        removed, permission = (
            ConnectorVisibility.objects.create(connector=connector, team=team) for team in (old, kept)
        )
    prefix = "connectorvisibility_set"
    rows = {f"{prefix}-TOTAL_FORMS": "3", f"{prefix}-INITIAL_FORMS": "2", f"{prefix}-0-DELETE": "on"}
    rows |= {f"{prefix}-{place}-id": f"{row.pk}" for place, row in enumerate((removed, permission))}
    rows |= {f"{prefix}-1-team": other.pk, f"{prefix}-2-team": new.pk}
    rows |= {f"{prefix}-{place}-connector": connector.pk for place in range(3)}
    assert save(admin, connector, **rows).status_code == 302
    with scope.every_team():
        assert {row.team for row in ConnectorVisibility.objects.filter(connector=connector)} == {kept, new}


def test_the_list_of_connectors_has_a_constant_number_of_queries(
    admin: Client, connector: Connector, count_queries: CountQueries
) -> None:
    few = count_queries(admin, LIST)
    more = [Connector.objects.create(name=f"c_{uuid.uuid4().hex}", url="https://wiki.test/mcp") for _ in range(3)]
    many = count_queries(admin, LIST)
    with scope.every_team():
        Connector.objects.filter(pk__in=[row.pk for row in more]).delete()
    assert many == few
