"""Statements of README.md and docs/ that something is unavailable, refused or without effect.

They stand in tables whose last columns are "request" and "answer", such as

    | SVG | `POST /v1/images/generations` `{"output_format": "svg"}` | 400 `unsupported_value` at `output_format` |

A first column "message" has the message of the error as code, in which `…` stands for any text.
A request may have a JSON body and headers (`Name: value`). Fields that every request of an endpoint needs are left out.
`WEBSOCKET` sends `response.create` with the body. The answer has a status and, for errors, the code and the parameter.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from typing_extensions import override

from tests.docs.blocks import ROOT

COLUMNS = ["request", "answer"]
UNAVAILABLE = ROOT / "docs" / "reference" / "unavailable.md"
STATEMENT = re.compile(
    r"\b(not available|unavailable|un(?:supported|implemented)|not (?:supported|implemented|offered|possible|accepted)"
    r"|(?:does|do) not (?:support|have|offer)|no support|not yet|yet|refused|rejected|ignored|no effect|without effect"
    r"|(?:platform|this server) (?:refuses|rejects|ignores|lacks)"
    r"|cannot be (?:used|set|sent|created|listed|changed|called))\b",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"(\d{3})(?: `(\w+)`)?(?: at `([^`]+)`)?(?:[,;] .*)?")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A row of such a table."""

    page: Path
    line: int
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    status: int
    code: str | None
    param: str | None
    message: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line} {self.method} {self.path}"


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A paragraph, heading or cell: its text without code, and whether it belongs to a table of refusals."""

    page: Path
    line: int
    text: str
    is_tested: bool


def refusals(page: Path) -> Iterator[Refusal]:
    """Yield the rows of the tables of refusals in a page."""
    for line, head, cells in _rows(page):
        if not _is_refusal(head, cells):
            continue
        request, answer = cells[-2:]
        spans = [child.content for child in request.children or [] if child.type == "code_inline"]
        method, _, path = spans[0].partition(" ")
        matched = _ANSWER.fullmatch(answer.content)
        assert matched, f"{page.name}:{line}: {answer.content!r} is not a status with a code"
        bodies = [json.loads(span) for span in spans[1:] if span.startswith("{")]
        headers = dict(span.split(": ", 1) for span in spans[1:] if not span.startswith("{"))
        status, code, param = matched.groups()
        yield Refusal(
            page=page, line=line, method=method, path=path, body=bodies[0] if bodies else None, headers=headers,
            status=int(status), code=code, param=param, message=_message(head, cells),
        )  # fmt: skip


def other_messages(page: Path) -> list[str]:
    """Return the messages in tables of errors that have no request."""
    rows = ((head, cells) for _, head, cells in _rows(page) if not _is_refusal(head, cells))
    return [message for head, cells in rows if (message := _message(head, cells))]


def matches(message: str, documented: str) -> bool:
    """Return whether a message is the documented one, in which `…` stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, documented.split("…"))), message, re.DOTALL) is not None


def passages(page: Path) -> Iterator[Passage]:
    """Yield the texts of a page without code blocks, and without generated tables, which have tests of their own."""
    refused = [(line, cells) for line, head, cells in _rows(page) if _is_refusal(head, cells)]
    tested = {(line, cell.content) for line, cells in refused for cell in cells}
    is_generated = False
    for token in _tokens(page):
        if token.type == "html_block" and re.match(r"<!-- (begin|end) ", token.content):
            is_generated = "<!-- begin" in token.content
        elif token.type == "inline" and not is_generated:
            line = _line(token)
            yield Passage(page=page, line=line, text=_text(token), is_tested=(line, token.content) in tested)


def _text(token: Token) -> str:
    """Return the text of a passage without code, and without links to the page of these tables."""
    text, is_link = "", False
    for child in token.children or []:
        if child.type in {"link_open", "link_close"}:
            is_link = UNAVAILABLE.name in str(child.attrs.get("href", ""))
        elif child.type in {"text", "softbreak"} and not is_link:
            text += child.content or " "
        elif child.type == "code_inline":
            text += "`…`"
    return text


def _is_refusal(head: list[str], cells: list[Token]) -> bool:
    return head[-2:] == COLUMNS and bool(cells[-2].content)


def _message(head: list[str], cells: list[Token]) -> str:
    return cells[0].content.strip("`") if head[0] == "message" else ""


def _rows(page: Path) -> Iterator[tuple[int, list[str], list[Token]]]:
    """Yield the rows of all tables: the line, the head of the table, and the cells."""
    head: list[str] = []
    cells: list[Token] = []
    for token in _tokens(page):
        match token.type:
            case "tr_open":
                cells = []
            case "inline":
                cells.append(token)
            case "thead_close":
                head = [cell.content for cell in cells]
            case "tr_close" if head:
                yield _line(cells[0]), head, cells
            case "table_close":
                head = []


def _line(token: Token) -> int:
    return (token.map or [0])[0] + 1


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())
