"""Pages for errors outside of the API."""

from django.test import RequestFactory
from django.views.defaults import server_error


def test_the_page_of_an_unexpected_error_has_the_design_of_the_others() -> None:
    page = server_error(RequestFactory().get("/admin/"))
    assert page.status_code == 500
    assert '<p class="status">500</p>' in page.content.decode()
    assert "x-request-id" in page.content.decode()
