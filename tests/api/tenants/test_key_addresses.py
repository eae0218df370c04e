"""API keys that may be used only from certain IP addresses."""

import pytest

from core.errors import Forbidden
from core.origin import Origin, use_origin
from tenants import directory
from tests.support.api import Caller, MakeApi, MakeCaller

NETWORKS = ["10.1.0.0/16", "2001:db8::/32", "192.0.2.7"]


@pytest.fixture
def restricted(make_caller: MakeCaller) -> Caller:
    """A caller whose key is restricted to NETWORKS."""
    return make_caller(allowed_addresses=NETWORKS)


@pytest.mark.parametrize("address", ["10.1.2.3", "2001:db8::1", "192.0.2.7"])
def test_a_key_works_from_its_allowed_networks(restricted: Caller, address: str) -> None:
    with use_origin(Origin(address=address)):
        assert directory.principal(restricted.secret).key_id == restricted.key.pk


@pytest.mark.parametrize("address", ["10.2.0.1", "2001:db9::1", "192.0.2.8", ""])
def test_a_key_is_refused_from_other_addresses(restricted: Caller, address: str) -> None:
    with use_origin(Origin(address=address)), pytest.raises(Forbidden) as refused:
        directory.principal(restricted.secret)
    assert refused.value.code == "ip_not_allowed"


def test_the_peer_address_is_checked_instead_of_a_forwarded_header(make_api: MakeApi) -> None:
    near, far = make_api(allowed_addresses=["127.0.0.0/8"]), make_api(allowed_addresses=["10.1.2.3"])
    assert near.get("/models").status_code == 200
    refused = far.request("GET", "/models", headers={"X-Forwarded-For": "10.1.2.3"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "ip_not_allowed")
    assert refused.json()["error"]["type"] == "permission_error"
