"""`python -m demo_upstream --host 127.0.0.1 --port 9000`: serves until SIGTERM or SIGINT."""

import argparse
import asyncio
import signal
import sys

from demo_upstream.app import running


async def serve(*, host: str, port: int) -> None:
    """Serve, and print a line as soon as connections are accepted."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with running(host=host, port=port) as url:
        sys.stdout.write(f"demo upstream listening on {url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> int:
    """Run the server and return the exit code, 1 if it cannot listen."""
    parser = argparse.ArgumentParser(prog="demo_upstream", description="A rule-driven chat-completions server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0 for any free port")
    arguments = parser.parse_args()
    try:
        asyncio.run(serve(host=arguments.host, port=arguments.port))
    except OSError as error:
        sys.stderr.write(f"demo upstream cannot listen on {arguments.host}:{arguments.port}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
