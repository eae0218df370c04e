"""What `/v1/conversations` has to do with runs: parse, one call, present."""

from rest_framework.request import Request
from rest_framework.response import Response as Answer

from conversations.selectors import public_conversation
from kernel.query import reject_unknown
from kernel.views import ApiView
from responses.api.requests import info, principal_of, refuse_body, scope_of
from responses.lifecycle import conversation_runs
from tenants.models import Scope


class CancelConversation(ApiView):
    """`POST /v1/conversations/{id}/cancel`."""

    def post(self, request: Request, conversation_id: str) -> Answer:
        principal, asgi = principal_of(request), scope_of(request)
        principal.require(Scope.CONVERSATIONS_WRITE)
        reject_unknown(request.query_params, page=False)
        refuse_body(asgi)
        conversation = conversation_runs.cancel_active_run(
            principal=principal, conversation_id=conversation_id, request=info(asgi)
        )
        return Answer(public_conversation(conversation))
