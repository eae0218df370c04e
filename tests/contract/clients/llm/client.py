"""Run the program `llm` and print its results as JSON: its output, errors and exit code.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py run '{"model": …, "endpoint": …, "prompts": [["Hi"], ["-c", "…"]]}'
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

OPTIONS = json.loads(sys.argv[2])


def settings() -> str:
    """Return its list of models: this server's, by one of its two endpoints."""
    model = {
        "model_id": "platform",
        "model_name": OPTIONS["model"],
        "api_base": os.environ["OPENAI_BASE_URL"],
        "api_key_name": "openai",
        "supports_schema": True,
        "supports_tools": True,
        "responses": OPTIONS["endpoint"] == "responses",
    }
    # JSON is YAML as well.
    return json.dumps([model])


def run(arguments: list[str], home: str) -> dict[str, Any]:
    command = ["llm", "prompt", "--model", "platform", *arguments]
    done = subprocess.run(
        command, env={**os.environ, "LLM_USER_PATH": home}, capture_output=True, text=True, check=False
    )
    return {"output": done.stdout, "errors": done.stderr, "status": done.returncode}


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        Path(home, "extra-openai-models.yaml").write_text(settings())
        sys.stdout.write(json.dumps([run(arguments, home) for arguments in OPTIONS["prompts"]]))
