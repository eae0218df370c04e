"""Fixtures of the admin tests: browsers signed in with different roles."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

import server.urls  # noqa: F401 - registers the pages
from tenants.models import Role, StaffRole
from tests.admin.rows import member, sign_in
from tests.support.api import Caller, MakeCaller
from tests.support.targets import Targets, several_targets
from tests.support.upstream import ScriptedUpstream

CountQueries = Callable[[Client, str], int]


@pytest.fixture
def admin(database: None) -> Client:
    """Browser of an administrator."""
    return sign_in(superuser=True)


@pytest.fixture
def lead(caller: Caller) -> Client:
    """Browser of the lead of `caller`'s team."""
    return member(caller.team, Role.TEAM_LEAD)


@pytest.fixture
def developer(caller: Caller) -> Client:
    """Browser of a developer in `caller`'s team."""
    return member(caller.team, Role.DEVELOPER)


@pytest.fixture
def auditor(caller: Caller) -> Client:
    """Browser of an auditor of `caller`'s team, who has no content access."""
    return member(caller.team, Role.AUDITOR)


@pytest.fixture
def operator(database: None) -> Client:
    """Browser of a platform operator, who sees every team but no content."""
    return sign_in(staff=StaffRole.OPERATOR)


@pytest.fixture
def platform_auditor(database: None) -> Client:
    """Browser of a platform auditor, who sees every team, but no content, and changes nothing."""
    return sign_in(staff=StaffRole.AUDITOR)


@pytest.fixture
def stranger(make_caller: MakeCaller) -> Client:
    """Browser of the lead of another team."""
    return member(make_caller().team, Role.TEAM_LEAD)


@pytest.fixture
def targets(upstream: ScriptedUpstream, database: None) -> Iterator[Targets]:
    """A model of this test."""
    with several_targets(upstream) as made:
        yield made


@pytest.fixture
def count_queries() -> CountQueries:
    """Function that counts the SQL queries of a page."""

    def count(client: Client, url: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url).status_code == 200
        return len(queries)

    return count


@pytest.fixture
def sql_of() -> Callable[[Client, str], str]:
    """Function that returns the SQL of a page."""

    def sql(client: Client, url: str, **query: Any) -> str:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url, query).status_code == 200
        return "\n".join(query["sql"] for query in queries)

    return sql
