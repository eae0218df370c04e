"""Moderation and guardrails: checks of the input and the output of responses.

With the parameter `moderation`, a moderation model checks both sides. For each side the policy says whether a result is
only reported, or blocks the response when content is flagged. If it can block the output, no part of a turn is sent
before the turn was checked. Results have the shapes of `Response.moderation` in the API.

A guardrail is a check that all responses of a team must pass, independent of what their requests ask for. A moderation
model or an HTTP hook decides, and each decision is stored as a row. Blocked content is handled as with the parameter:
input is rejected with a 400, and output ends as a failed response that shows none of it.
"""
