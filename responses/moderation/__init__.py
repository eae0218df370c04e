"""Moderation and guardrails: checks of the input and the output of responses.

With the parameter `moderation`, a moderation model checks the input and the output. For each of them, the policy says
if flagged content is only reported or blocks the response. If output can be blocked, no part of a turn is sent before
the turn was checked. Results have the form of `Response.moderation` in the API.

A guardrail is a check that all responses of a team must pass, whatever their requests say. A moderation model or an
HTTP hook decides, and each decision is stored as a row. Blocked content is handled as with the parameter: blocked input
is rejected with a 400, and a response with blocked output fails and does not show the output.
"""
