"""Imports at the start of each process: they cost time at every start of the platform and of every command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("migrate", "beat", "prepare_demo", "create_key", "add_upstream", "audit_check")
COMMANDS = "from django.core.management import load_command_class, get_commands; known = get_commands()\n"
# Needed by a few requests only.
RARE = {"mcp", "pypdf", "lark", "server.reference", "mkdocs"}
# Needed by web and worker only.
SERVING = {"openai", "aiohttp", "httpx2", "jsonschema", "twisted.internet", "markdown_it", "server.urls"}
PAGES = {"responses.admin", "organization.admin", "responses.tools.registry", "conversations.items"}


def imported(code: str) -> set[str]:
    """Return the modules imported by a process that sets up Django and runs the code."""
    whole = f"import django, sys\ndjango.setup()\n{code}\nprint(*sys.modules)"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "server.settings",
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
    }
    command = [sys.executable, "-c", whole]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.split())


def test_beat_and_small_commands_import_neither_the_api_nor_the_console() -> None:
    found = imported(COMMANDS + f"for name in {SMALL}: load_command_class(known[name], name)")
    assert "server.celery" in found
    assert not found & (RARE | SERVING | PAGES)


def test_web_and_worker_import_rarely_used_libraries_later() -> None:
    found = imported(COMMANDS + "import server.asgi, server.urls; load_command_class('server', 'worker')")
    assert "responses.tools.registry" in found
    assert not found & RARE
