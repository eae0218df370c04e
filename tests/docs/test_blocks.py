"""Code blocks of README.md and docs/ have a language and are valid in it; external links are well-formed."""

import ast
import configparser
import json
import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.docs.blocks import DOCUMENTED, ROOT, Block, blocks

BLOCKS = [block for page in DOCUMENTED for block in blocks(page)]
EXECUTED = {"bash", "python", "sql", "text"}  # by test_execution, or checked by test_commands
# Examples in the documentation that readers should not follow.
EXAMPLE_HOSTS = re.compile(r"(^|\.)(example\.(com|org|net)|corp)$|^(127\.0\.0\.1|localhost)(:\d+)?$|<|…|\[")


def parse(block: Block) -> None:
    """Parse a block in its language; raises if it is invalid or the language is unknown."""
    match block.language:
        case "json":
            json.loads(block.text)
        case "jsonl":
            assert [json.loads(line) for line in block.text.splitlines()]
        case "yaml":
            yaml.safe_load(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "ini":
            configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
        case "nginx":
            assert block.text.count("{") == block.text.count("}")
            assert all(re.search(r"[;{}]\s*(#.*)?$", line) for line in block.text.splitlines() if line.strip())
        case "http":
            head, _, body = block.text.partition("\n\n")
            assert all(re.match(r"[\w-]+: \S|(GET|POST|DELETE|PUT) /\S+", line) for line in head.splitlines())
            if body.strip():
                json.loads(body)
        case "python":
            ast.parse(block.text)
        case "javascript":
            assert block.file, "test_execution runs programs that readers save"
        case "bash" | "sh":
            checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr
        case language:
            assert language in EXECUTED, f"{language!r} is not a language that the documentation uses"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_are_valid_in_their_language(block: Block) -> None:
    parse(block)


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.excerpt_of], ids=str)
def test_excerpts_match_their_module(block: Block) -> None:
    source = (ROOT / str(block.excerpt_of)).read_text()
    parts = [part.strip("\n") for part in re.split(r"^\s*(?:\.\.\.|# …)$", block.text, flags=re.MULTILINE)]
    assert [part for part in parts if part not in source] == []


def test_keys_and_names_in_blocks_are_not_cut_off() -> None:
    # An ellipsis in a command or a program cannot run as printed.
    cut = [str(one) for one in BLOCKS if one.language in {"bash", "python", "sql"} and "…" in one.text]
    assert cut == []


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_external_links_are_well_formed(page: Path) -> None:
    links = re.findall(r"\]\((\w+:[^)\s]+)\)|<(https?:[^>\s]+)>", page.read_text())
    for link in ("".join(pair) for pair in links):
        parts = urlsplit(link)
        assert parts.scheme in {"https", "mailto"} or EXAMPLE_HOSTS.search(parts.netloc), link
        assert parts.path or parts.netloc, link
        assert not re.search(r"[\s…{}]", link), link
