"""Endpoint `/v1/me`: the key of the request."""

from django.http import QueryDict

from core.http.endpoints import STRING, Endpoint
from core.http.query import QueryArgument, parameter
from limits import end_user_of
from server.key_status import Me, key_status
from tenants.views import ApiRequest, ApiView


def _end_user(query: QueryDict) -> str:
    return end_user_of(query.get("end_user"))


class MeView(ApiView, path="me"):
    """The key of the request."""

    @Endpoint(
        "",
        "Retrieve the key of the request",
        query=(QueryArgument("end_user", [parameter("end_user", STRING)], _end_user),),
        errors=(400, 401, 503),
        note="any key: its team, scopes, models, tools and expiry, the remaining limits and budgets, and the spend",
    )
    def get(self, request: ApiRequest, end_user: str) -> Me:
        return key_status(request.principal, end_user=end_user)
