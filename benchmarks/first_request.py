"""`python -m benchmarks first-request`: the first requests of a new web process, with and without its warm-up."""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load import Target
from benchmarks.report import Floor
from benchmarks.stack import ROOT, Client, Servers, running_servers
from launcher.address import any_free_port, is_free

MOST_MS, MOST_MCP_MS = 300.0, 600.0
_LATER = 10


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks first-request")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--server", choices=["daphne", "uvicorn"], default="uvicorn")
    options = parser.parse_args(arguments)
    figures: list[Floor] = []
    with running_servers(directory) as servers:
        model, tool = any_free_port(), any_free_port()
        environment = {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
        demo = (sys.executable, "-m", "demo_upstream", "--port", str(model))
        servers.start("demo", *demo, is_ready=lambda: not is_free(host="127.0.0.1", port=model), **environment)
        mcp = (sys.executable, "-m", "benchmarks.mcp_server", str(tool))
        servers.start("mcp", *mcp, is_ready=lambda: not is_free(host="127.0.0.1", port=tool), **environment)
        servers.environment["EGRESS_ALLOW"] = "127.0.0.1"
        key = servers.route(f"http://127.0.0.1:{model}")
        tools = [{"type": "mcp", "server_label": "b", "server_url": f"http://127.0.0.1:{tool}/mcp"}]
        for warm in (False, True):
            plain, with_mcp = _measure(servers, key=key, server=options.server, warm=warm, tools=tools)
            name = "warm" if warm else "cold"
            for kind, (first, later), limit in (("text", plain, MOST_MS), ("MCP", with_mcp, MOST_MCP_MS)):
                print(f"        {name}, {kind}: first {first:.0f} ms, later {later:.0f} ms")
                if warm:
                    figures.append(Floor(name=f"{kind}: milliseconds of the first response", figure=first, limit=limit))
    for figure in figures:
        print(figure.text())
    return 1 if options.check and not all(figure.holds for figure in figures) else 0


def _measure(
    servers: Servers, *, key: str, server: str, warm: bool, tools: list[dict[str, Any]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the milliseconds of the first stream and of the median later one, without tools and with them."""
    servers.environment["WARM_UP"] = "1" if warm else "0"
    began = time.monotonic()
    target = servers.start_web(server=server, key=key)
    print(f"        {'warm' if warm else 'cold'}: ready after {time.monotonic() - began:.1f} s")
    return _first_and_later(target, []), _first_and_later(target, tools)


def _first_and_later(target: Target, tools: list[dict[str, Any]]) -> tuple[float, float]:
    taken = []
    for _ in range(1 + _LATER):
        body = {"model": "demo", "input": "Say hello.", "stream": True, "tools": tools}
        began = time.perf_counter()
        Client(target).open("POST", "/responses", body).read()
        taken.append(1000 * (time.perf_counter() - began))
    first, *later = taken
    return first, sorted(later)[_LATER // 2]
