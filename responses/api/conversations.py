"""Views of `/v1/conversations` that concern runs."""

from rest_framework.request import Request
from rest_framework.response import Response

from conversations.selectors import public_conversation
from kernel.query import reject_unknown
from kernel.views import ApiView
from responses.api.requests import info_of, principal_of, reject_body, scope_of
from responses.lifecycle import conversation_runs
from tenants.models import Scope


class CancelConversationView(ApiView):
    """`POST /v1/conversations/{id}/cancel`."""

    def post(self, request: Request, conversation_id: str) -> Response:
        principal, asgi = principal_of(request), scope_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False)
        reject_body(asgi)
        conversation = conversation_runs.cancel_active_run(
            principal=principal, conversation_id=conversation_id, request=info_of(asgi)
        )
        return Response(public_conversation(conversation))
