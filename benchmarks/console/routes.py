"""A path for each route of the console, so that a new page is measured without being listed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.admin.crawling import AdminRoute, TeamData

NOT_MEASURED: Mapping[str, str] = {
    "admin:search": "the theme's search; the console's own has the same address",
    "admin:login": "signed-in users are sent to the home page",
    "console:file_content": "the test data has no contents of files",
    "admin:view_on_site": "a redirect that only pages with a public counterpart use",
}
"""Routes that are no pages, with the reason."""


def paths_of_routes(subject: "TeamData") -> dict[str, Sequence[str]]:
    """Return the path of each route that answers GET, by name, with values of a team."""
    from tests.admin.crawling import addresses, admin_routes

    return {
        f"route {route.name}": paths
        for route in admin_routes()
        if route.name not in NOT_MEASURED and (paths := _paths(route, addresses(route, subject)))
    }


def _paths(route: "AdminRoute", found: Sequence[str]) -> Sequence[str]:
    query = _QUERIES.get(route.name, "")
    return [path + query for path in found[:1]]


_QUERIES = {
    "admin:autocomplete": "?app_label=tenants&model_name=membership&field_name=team&term=team",
}
