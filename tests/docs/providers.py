"""Stands in for providers, LiteLLM and model servers: the demo upstream, below a path of its own for each of them.

`python -m tests.docs.providers PORT FILE` appends a line of JSON to the file for each request, with provider, path, key
and model.
"""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from demo_upstream import models
from demo_upstream.app import create_app

# By their documented addresses.
PROVIDERS = {
    "api.openai.com/v1": "openai",
    "127.0.0.1:4000/v1": "litellm",
    "127.0.0.1:8001/v1": "vllm",
    "127.0.0.1:30000/v1": "sglang",
    "127.0.0.1:8080/v1": "llama-cpp",
    "127.0.0.1:11434/v1": "ollama",
    "127.0.0.1:1234/v1": "lm-studio",
    **{f"10.0.0.{number}:8001/v1": f"vllm-{number}" for number in range(11, 16)},
    "models.example.com/v1": "hosted",
    "api.mistral.ai/v1": "mistral",
    "api.deepseek.com/v1": "deepseek",
    "generativelanguage.googleapis.com/v1beta/openai": "gemini",
    "openrouter.ai/api/v1": "openrouter",
    "api.groq.com/openai/v1": "groq",
    "api.anthropic.com/v1": "anthropic",
}
NAMES = ("qwen3", "qwen3-4b", "llama3.2", "Qwen/Qwen3-8B")
PATHS = {"chat_completions": "/v1/chat/completions", "responses": "/v1/responses"}


async def _serve(*, port: int, file: Path) -> None:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        name, _, path = request.path.removeprefix("/").partition("/")
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        model = json.loads(await request.read() or b"{}").get("model")
        with file.open("a") as lines:
            lines.write(json.dumps({"provider": name, "path": f"/{path}", "key": key, "model": model}) + "\n")
        return await handler(request)

    models.LISTED = (*models.LISTED, *NAMES)
    app = web.Application(middlewares=[record])
    for name in PROVIDERS.values():
        app.add_subapp(f"/{name}", create_app())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(port=int(sys.argv[1]), file=Path(sys.argv[2])))
