"""Base class of the API's views."""

from typing import Any

from rest_framework.request import Request
from rest_framework.views import APIView
from typing_extensions import override


class ApiView(APIView):
    """DRF view without content negotiation: every client gets JSON, whatever `Accept` or `?format=` says."""

    @override
    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        # DRF would answer 406 or 404 to clients that send an unusual `Accept` or `format`; OpenAI's API does not.
        renderer = self.get_renderers()[0]
        return renderer, renderer.media_type
