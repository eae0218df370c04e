"""The code blocks of README.md and docs/ and their purposes."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from markdown_it import MarkdownIt
from typing_extensions import override

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# With the pages whose commands take too long to be followed: tests/docs/test_commands.py checks those.
DOCUMENTED = sorted({*PAGES, *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"})
_SAVED = re.compile(r"\b[Ss]aved? [^.]*?as `([\w./-]+\.\w+)`")
_NAMED = re.compile(r"# ([\w./-]+\.\w+)\n")
_EXCERPT = re.compile(r"\bfrom `([\w./-]+\.py)`")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a page. ``intro`` is the text between it and the block or heading above it."""

    page: Path
    line: int
    language: str
    text: str
    intro: str

    @override
    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file in which readers save the block, named by its first line or by the sentence before it."""
        if self.language == "python" and (named := _NAMED.match(self.text)):
            return named[1]
        saved = _SAVED.findall(self.intro)
        return saved[-1] if saved and self.language not in {"bash", "text"} else None

    @property
    def excerpt_of(self) -> str | None:
        """The module of the platform that it is an excerpt from."""
        found = _EXCERPT.findall(self.intro)
        return found[-1] if found and self.language == "python" and not self.file else None

    @property
    def is_diagram(self) -> bool:
        """True for text that is a drawing, not output."""
        return self.language == "text" and bool(set(self.text) & set("│─►◄▲▼┌└├"))


def manage_commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of `manage.py` in the commands of a text."""
    for match in re.finditer(r"\bmanage\.py ", text):
        rest = re.sub(r"\s#.*", "", text[match.end() :]).replace("\\\n", " ")
        lexer = shlex.shlex(rest, posix=True, punctuation_chars="();<>|&\n")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        yield list(takewhile(lambda word: not set(word) <= set("();<>|&\n"), lexer))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in their order; indented ones have the language "indented"."""
    intro: list[str] = []
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type == "heading_open":
            intro = []
        elif token.type == "inline":
            intro.append(token.content.replace("\n", " "))
        elif token.type in {"fence", "code_block"}:
            language = token.info.strip() if token.type == "fence" else "indented"
            line = (token.map or [0])[0] + 1
            yield Block(page=page, line=line, language=language, text=token.content, intro=" ".join(intro))
            intro = []


def code_spans(page: Path) -> Iterator[str]:
    """Yield the code in the sentences and tables of a page."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        yield from (child.content for child in token.children or [] if child.type == "code_inline")
