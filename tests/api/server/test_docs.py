"""`GET /openapi.json` and `GET /docs`: the public API documentation, without external resources."""

from typing import Any

import httpx2
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from responses.schema import CreateResponse
from server.api_urls import ENDPOINTS
from tests.browser.chromium import chromium
from tests.support.waiting import PATIENCE
from tests.support.web import WebProcess


@pytest.fixture
def document(web: WebProcess) -> dict[str, Any]:
    """Return the OpenAPI document."""
    answer: dict[str, Any] = httpx2.get(f"{web.url}/openapi.json", timeout=PATIENCE).json()
    return answer


def _references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*map(_references, part.values()))
    return set().union(*map(_references, part)) if isinstance(part, list) else set()


def _without_texts(part: Any) -> Any:
    if isinstance(part, dict):
        kept = {key: value for key, value in part.items() if key != "description" or not isinstance(value, str)}
        return {key: _without_texts(value) for key, value in kept.items()}
    return [_without_texts(one) for one in part] if isinstance(part, list) else part


@pytest.mark.slow
def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_reference_names_an_existing_schema(document: dict[str, Any]) -> None:
    kinds = document["components"]
    known = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in kinds[kind]}
    assert _references(document) <= known


def test_the_document_describes_exactly_the_existing_endpoints(document: dict[str, Any]) -> None:
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(one.method, one.template) for one in ENDPOINTS}


@pytest.mark.slow
def test_schema_names_are_unique(document: dict[str, Any]) -> None:
    inner = CreateResponse.model_json_schema(ref_template="#/components/schemas/{model}")["$defs"]
    known = document["components"]["schemas"]
    assert [name for name, schema in inner.items() if _without_texts(known[name]) != _without_texts(schema)] == []


def test_the_documented_parameters_of_a_response_match_the_validated_ones(document: dict[str, Any]) -> None:
    create = document["components"]["schemas"]["CreateResponse"]
    assert {"model", "input", "previous_response_id", "tools"} <= set(create["properties"])
    assert "required" not in create, "a stored prompt can bring both model and input"


def test_the_address_of_the_reference_leads_to_its_first_page(web: WebProcess) -> None:
    answer = httpx2.get(f"{web.url}/docs", timeout=PATIENCE)
    assert (answer.status_code, answer.headers["location"]) == (302, "/docs/guide/reference/api/index.html")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_reference_asks_no_other_server(web: WebProcess) -> None:
    with chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.on("requestfinished", lambda request: asked.append(request.url))
        # Requests that the page's policy blocks are not sent.
        page.on("requestfailed", lambda request: asked.append(request.url) if request.failure != "csp" else None)
        page.goto(f"{web.url}/docs")
        page.get_by_role("link", name="Create a response").click()
        page.get_by_role("heading", name="Create a response").wait_for()
        page.wait_for_load_state("networkidle")
    assert [url for url in asked if not url.startswith((web.url, "data:", "blob:"))] == []
