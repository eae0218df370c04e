"""What all views of the API share."""

from typing import Any

from rest_framework.request import Request
from rest_framework.views import APIView
from typing_extensions import override


class ApiView(APIView):
    """DRF's view without its negotiation: everybody gets JSON, whatever `Accept` or `?format=` says."""

    @override
    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """There is one renderer."""
        renderer = self.get_renderers()[0]
        return renderer, renderer.media_type
