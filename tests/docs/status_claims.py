"""Sentences of the documentation that a request gets a status of 4xx, and the tests that show it."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.inventory import FOLLOWED_BY
from tests.docs.refusals import passages

CLAIM = re.compile(r"\b(?:gets?|fails? with|(?:answered|refused|rejected) with) (?:a |an )?4\d\d\b")
_SCHEMA = "tests/api/server/test_coverage.py::"
_KEYS = "tests/api/tenants/"
_RUNS = "tests/api/responses/"
_GATEWAY = "tests/api/gateway/"
TESTS = {
    "docs/concepts/items.md": [
        f"{_RUNS}test_create_response_conversation.py::test_a_second_concurrent_response_gets_a_conflict"
    ],
    "docs/concepts/limits.md": [
        "tests/api/limits/test_limits.py::test_a_hard_budget_is_never_exceeded",
        "tests/api/limits/test_limits.py::test_requests_in_progress_reserve_the_budget",
    ],
    "docs/concepts/packages.md": [f"{_SCHEMA}test_refused_parameters_are_refused_by_name"],
    "docs/concepts/tenancy.md": [
        f"{_RUNS}test_encrypted_reasoning.py::test_another_teams_encrypted_content_is_rejected",
        "tests/api/server/test_open_requests.py::test_a_key_with_too_many_open_streams_is_refused_until_one_has_ended",
    ],
    "docs/howto/add-an-endpoint.md": [
        "tests/api/conversations/test_conversations_export.py::test_unknown_query_parameters_are_rejected"
    ],
    "docs/howto/api-keys.md": [
        f"{_KEYS}test_key_rotation.py::test_both_secrets_work_until_the_grace_period_ends",
        f"{_KEYS}test_key_addresses.py::test_a_key_is_refused_from_other_addresses",
    ],
    "docs/howto/batches.md": [f"{_GATEWAY}test_batch_runs.py::test_lines_fail_when_the_key_of_the_batch_is_revoked"],
    "docs/howto/claude-clients.md": [f"{_GATEWAY}test_messages_errors.py::test_invalid_requests_are_rejected_by_name"],
    "docs/howto/code-interpreter.md": [
        "tests/faults/test_sandbox.py::test_requests_get_503_while_the_service_does_not_answer"
    ],
    "docs/howto/connect-a-model.md": [
        f"{_RUNS}test_capabilities.py::test_extra_sampling_is_rejected_for_other_models",
        f"{_RUNS}test_truncation.py::test_input_beyond_the_context_window_is_refused_before_the_upstream_call",
        f"{_RUNS}test_capabilities.py::test_an_unsupported_reasoning_effort_is_rejected",
        "tests/api/routing/test_target_limits.py::test_the_limit_of_a_single_target_applies",
    ],
    "docs/howto/conversations.md": [
        f"{_RUNS}test_create_response_items.py::test_a_call_without_an_output_is_rejected",
        f"{_RUNS}test_create_response_conversation.py::test_a_second_concurrent_response_gets_a_conflict",
        "tests/api/conversations/test_conversations_delete_item.py::test_a_call_is_refused_after_its_output_was_deleted",
    ],
    "docs/howto/function-calling.md": [FOLLOWED_BY],
    "docs/howto/guardrails.md": [f"{_RUNS}test_guardrails.py::test_chat_completions_are_checked_as_well"],
    "docs/howto/mcp.md": [
        FOLLOWED_BY,
        "tests/faults/test_waiting_runs.py::test_an_answer_in_another_request_is_referred_to_the_waiting_response",
        "tests/faults/test_tool_questions.py::test_answers_are_checked_against_the_schema",
        "tests/api/tools/test_mcp.py::test_a_server_at_a_blocked_address_is_refused",
    ],
    "docs/howto/operations.md": [
        "tests/storage/test_vector_schema.py::test_a_missing_vector_table_is_reported",
        f"{_RUNS}test_encrypted_reasoning.py::test_foreign_encrypted_content_is_rejected",
    ],
    "docs/howto/prompts.md": [f"{_RUNS}test_prompts.py::test_unknown_and_missing_variables_are_refused"],
    "docs/howto/structured-output.md": [FOLLOWED_BY],
    "docs/reference/api-coverage.md": [
        "tests/docs/test_refusals.py::test_every_endpoint_of_the_sdk_that_is_missing_is_called",
        f"{_RUNS}test_list_responses.py::test_an_invalid_query_names_the_parameter",
        "tests/docs/test_refusals.py::test_the_request_of_a_row_gets_its_answer",
        f"{_GATEWAY}test_embeddings.py::test_invalid_parameters_are_rejected",
        "tests/api/tools/test_image_generation.py::test_unsupported_settings_are_rejected",
        f"{_GATEWAY}test_chat_bad_input.py::test_invalid_parameters_are_rejected_with_param_and_code",
        f"{_RUNS}test_guardrails.py::test_chat_completions_are_checked_as_well",
        f"{_SCHEMA}test_other_methods_get_405_with_the_allowed_methods",
    ],
    "docs/reference/clients.md": [
        f"{_RUNS}test_client_fields.py::test_other_unknown_fields_are_still_rejected",
        "tests/api/tools/test_unavailable_tools.py::test_a_forced_tool_is_rejected",
        "tests/api/tools/test_tool_permissions.py::test_a_key_without_the_tool_is_refused",
    ],
    "docs/reference/configuration.md": [
        f"{_GATEWAY}test_images.py::test_a_missing_image_model_is_reported_with_its_setting",
        "tests/wire/test_http_headers.py::test_a_wrong_host_is_logged_in_one_line",
        "tests/wire/test_body_limits.py::test_a_slow_body_times_out",
        "tests/api/server/test_open_requests.py::test_a_key_with_too_many_open_streams_is_refused_until_one_has_ended",
        "tests/faults/test_sandbox.py::test_requests_get_503_while_the_service_does_not_answer",
    ],
    "docs/reference/unavailable.md": [
        "tests/docs/test_refusals.py::test_every_endpoint_of_the_sdk_that_is_missing_is_called"
    ],
}
"""The test of each sentence, in the order of a page. Rows of tables with a request and an answer are tested as such."""


def claims(page: Path) -> Iterator[str]:
    """Yield the sentences of a page that name a status of 4xx, one for each status."""
    for passage in passages(page):
        if not passage.is_tested:
            for status in CLAIM.finditer(passage.text):
                yield f"{page.name}:{passage.line}: {passage.text[: status.end()][-120:]}"
