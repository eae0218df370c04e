"""Declarations decide which endpoints are refused under overload and during a shutdown."""

from core.http.endpoints import Endpoint, EndpointIndex
from server.api_urls import ENDPOINTS
from tests.support.work import SERVED, paths_of_work


def test_post_requests_are_work_unless_they_update_cancel_or_administer() -> None:
    index = EndpointIndex(ENDPOINTS)
    for path in SERVED:
        endpoint = index.find("POST", f"/v1{path}")
        assert endpoint is not None
        assert not endpoint.is_work, path
    for path in paths_of_work():
        endpoint = index.find("POST", f"/v1{path}")
        assert endpoint is not None
        assert endpoint.is_work, path


def test_reading_and_deleting_are_not_work() -> None:
    assert not [endpoint.path for endpoint in ENDPOINTS if endpoint.method != "POST" and endpoint.is_work]


def test_literal_paths_take_precedence_over_ids() -> None:
    by_id = Endpoint("", "", method="POST", path="things/<id>", returns="")
    by_name = Endpoint("", "", method="POST", path="things/check", returns="")
    index = EndpointIndex([by_id, by_name])
    assert index.find("POST", "/v1/things/check") is by_name
    assert index.find("POST", "/v1/things/x") is by_id
    assert index.find("GET", "/v1/things/x") is None
    assert not index.at("/v1/things/x/y")
