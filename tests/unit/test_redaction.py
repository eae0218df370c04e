"""Redaction of documents before they are shown."""

from typing import Any

import pytest

from responses.admin.redaction import REDACTED, redacted, without_secrets


@pytest.mark.parametrize(
    "document",
    [
        {"authorization": "HUSH-HUSH-HUSH"},
        {"tools": [{"type": "mcp", "authorization": "HUSH-HUSH-HUSH"}]},
        {"tools": [{"type": "mcp", "headers": {"X-Token": "HUSH-HUSH-HUSH"}}]},
        {"API_KEY": "HUSH-HUSH-HUSH"},
        {"input": "Authorization: Bearer HUSH-HUSH-HUSH"},
        {"input": [{"content": "use sk-HUSHHUSHHUSHHUSH please"}]},
        {"server_url": "https://me:HUSH-HUSH-HUSH@box.example/"},
        ["whsec_HUSHHUSHHUSHHUSH"],
    ],
)
def test_secrets_are_removed(document: Any) -> None:
    for clean in (redacted, without_secrets):
        assert "HUSH" not in str(clean(document))
        assert REDACTED in str(clean(document))


def test_values_that_are_not_secrets_are_kept_despite_the_name_of_their_key() -> None:
    schema = {
        "properties": {"password": {"type": "string"}, "authorization": {"type": "object"}},
        "required": ["secret"],
    }
    document = {"parameters": schema, "max_output_tokens": 20, "input": "the bearer of sk-8 is basic", "headers": None}
    assert redacted(document) == document


def test_absent_values_stay_absent() -> None:
    assert redacted({"authorization": None, "secret": ""}) == {"authorization": None, "secret": ""}


def test_binary_data_is_replaced_by_its_size() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 8000}
    found = redacted({"input": [image, {"file_data": "B" * 8000}, {"text": "C" * 8000}]})["input"]
    assert found[0]["image_url"] == "data:image/png;base64,… (data URL, image/png, 6.0 KB)"
    assert found[1]["file_data"] == "BBBBBBBBBBBBBBBB… (8,000 characters)"
    assert found[2]["text"] == "C" * 8000


def test_a_runnable_command_keeps_its_binary_data() -> None:
    url = "data:image/png;base64," + "A" * 8000
    assert without_secrets({"image_url": url}) == {"image_url": url}
