"""Endpoint of `/v1/responses/{id}/approvals`."""

from core.http.endpoints import Endpoint
from engine.calls.waits import Outcome
from responses.api import objects
from responses.api.requests import info_of
from responses.lifecycle.decisions.decide import Answer, decide_for_client
from responses.schema.decisions import DecideApproval
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView


class ApprovalView(ApiView, path="responses/<resp:response_id>/approvals/<str:approval_request_id>"):
    """Decision about a call for which a response waits."""

    @Endpoint(
        Scope.APPROVALS_WRITE,
        "Make a decision for which a response waits",
        body=DecideApproval,
        note="extension: makes a decision about a call for which a background response waits; returns the response",
    )
    def post(
        self, request: ApiRequest, response_id: str, approval_request_id: str, body: DecideApproval
    ) -> objects.ResponseBody:
        outcome = None if body.outcome is None else Outcome(body.outcome)
        return decide_for_client(
            principal=request.principal,
            response_id=response_id,
            decision_id=approval_request_id,
            answer=Answer(
                approve=body.approve,
                outcome=outcome,
                result=body.result,
                action=body.action,
                content=body.content,
                reason=body.reason or "",
            ),
            request=info_of(request.asgi),
        )
