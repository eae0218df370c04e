"""The test of each code block of the documentation, and the reasons why some blocks are not executed as printed."""

from dataclasses import dataclass

from tests.docs.blocks import PAGES, ROOT, Block, blocks

RUNS = {"bash", "python", "sql", "text"}
"""Languages whose blocks run, and the output that they print."""
FOLLOWED_BY = "tests/docs/test_execution.py::test_the_page_works_as_printed"
REFERENCE = "tests/docs/test_api_reference.py::test_curl_samples_get_the_answers_of_the_examples"


@dataclass(frozen=True)
class NotExecuted:
    """A page whose commands no test runs as printed, the reason, and the test that checks them instead."""

    reason: str
    test: str


_COMMANDS = "tests/docs/test_commands.py::test_commands_of_the_platform_have_the_options_that_are_documented"
NOT_EXECUTED = {
    "docs/howto/deploy.md": NotExecuted(
        "The commands create accounts, services and files below /etc. tests/deployment/ uses what they install.",
        _COMMANDS,
    ),
    "docs/howto/upgrade.md": NotExecuted(
        "The commands replace the version of an installation. tests/storage/test_upgrades.py upgrades databases.",
        _COMMANDS,
    ),
    "CONTRIBUTING.md": NotExecuted(
        "The commands install packages and run tests for minutes.",
        "tests/docs/test_commands.py::test_programs_modules_and_make_targets_exist",
    ),
    "benchmarks/README.md": NotExecuted(
        "The measurements take up to hours.",
        "tests/docs/test_commands.py::test_benchmarks_have_the_options_that_are_documented",
    ),
}
PARTS_EXECUTED = {
    "docs/howto/deploy.md": {"python": "tests/docs/test_execution.py::test_the_program_that_checks_a_deployment_works"},
}
"""Blocks of such pages that are executed in spite of this, by language."""
_CHART = "tests/deployment/test_chart.py::test_documented_values_are_rendered"
_HERE = "tests/docs/test_documents.py::"
DOCUMENTS = {
    "docs/howto/backup.md": [_CHART],
    "docs/howto/batches.md": [f"{_HERE}test_the_line_of_a_batch_is_valid"],
    "docs/howto/code-interpreter.md": [f"{_HERE}test_documented_tools_are_accepted"],
    "docs/howto/codex.md": [f"{_HERE}test_the_configuration_of_codex_names_the_wire_api_of_the_platform"],
    "docs/howto/deploy.md": [_CHART],
    "docs/howto/guardrails.md": [
        "tests/api/responses/test_guardrails.py::test_content_that_passes_is_unchanged",
        "tests/api/responses/test_guardrails.py::test_the_documented_answer_blocks_an_input",
    ],
    "docs/howto/mcp.md": [
        f"{_HERE}test_documented_tools_are_accepted",
        f"{_HERE}test_the_effect_id_of_a_call_is_in_its_metadata",
        f"{_HERE}test_a_tool_declares_that_it_honours_effect_ids",
        f"{_HERE}test_pending_decisions_have_the_documented_fields",
    ],
    "docs/howto/notifications.md": [
        "tests/faults/test_budget_alerts.py::test_crossing_a_percentage_notifies_the_lead_and_the_webhook"
    ],
    "docs/howto/operations.md": [f"{_HERE}test_the_line_of_the_access_log_has_the_documented_fields"],
    "docs/howto/webhooks.md": [f"{_HERE}test_the_documented_delivery_is_an_event"],
    "docs/reference/errors.md": [
        "tests/docs/test_reference.py::test_the_example_error_is_the_error_of_a_misspelt_parameter"
    ],
}
"""The tests of the blocks that do not run, such as JSON, in the order of a page."""


def is_followed(page: str) -> bool:
    """Return whether test_execution runs a page from top to bottom."""
    path = ROOT / page
    is_guide = path in PAGES and page not in NOT_EXECUTED and path.parent.name != "api"
    return is_guide and any(block.language in RUNS - {"text"} for block in blocks(path))


def blocks_with_tests(page: str) -> list[tuple[Block, str | None]]:
    """Return the blocks of a page, each with the test that executes or checks it, or None."""
    documents = iter(DOCUMENTS.get(page, []))
    return [(block, _test_of(block, page) or next(documents, None)) for block in blocks(ROOT / page)]


def _test_of(block: Block, page: str) -> str | None:
    if block.is_diagram:
        return "tests/docs/test_blocks.py::test_blocks_are_valid_in_their_language"
    if block.excerpt_of:
        return "tests/docs/test_blocks.py::test_excerpts_match_their_module"
    if page.startswith("docs/reference/api/"):
        return REFERENCE if block.language in {"bash", "python", "json", "text"} else None
    if is_followed(page):
        return FOLLOWED_BY if block.file or block.language in RUNS else None
    if block.language in RUNS and page in NOT_EXECUTED:
        return PARTS_EXECUTED.get(page, {}).get(block.language) or NOT_EXECUTED[page].test
    return None
