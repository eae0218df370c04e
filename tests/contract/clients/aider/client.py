"""Run aider in a new git repository and print what happened as JSON: its output, the files and the commits.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py run '{"model": …, "message": …, "files": {…}, "options": […]}'
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

OPTIONS = json.loads(sys.argv[2])
# No reports of its use, no newer version, no pages of models that it does not know.
QUIET = (
    "--analytics-disable",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-detect-urls",
    "--no-gitignore",
    "--no-pretty",
    "--no-suggest-shell-commands",
    "--yes-always",
)


def call(*command: str, folder: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with that as its home."""
    variables = {
        "HOME": str(Path(folder).parent / "home"),
        "OPENAI_API_BASE": os.environ["OPENAI_BASE_URL"],
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    for role in ("AUTHOR", "COMMITTER"):
        variables |= {f"GIT_{role}_NAME": "Tom", f"GIT_{role}_EMAIL": "tom@example.com"}
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    with TemporaryDirectory() as root:
        home, work = Path(root, "home"), Path(root, "work")
        # Without this list of known models it would load one.
        models = home / ".aider" / "caches" / "model_prices_and_context_window.json"
        models.parent.mkdir(parents=True)
        models.write_text('{"none": {}}')
        work.mkdir()
        call("git", "init", "--quiet", folder=str(work))
        for name, content in OPTIONS["files"].items():
            (work / name).write_text(content)
            call("git", "add", name, folder=str(work))
        call("git", "commit", "--quiet", "--message", "Begin", folder=str(work))
        model = ["--model", f"openai/{OPTIONS['model']}", "--message", OPTIONS["message"]]
        done = call("aider", *QUIET, *model, *OPTIONS.get("options", []), *OPTIONS["files"], folder=str(work))
        result = {
            "output": done.stdout,
            "errors": done.stderr,
            "status": done.returncode,
            "files": {name: (work / name).read_text() for name in OPTIONS["files"]},
            "commits": call("git", "log", "--format=%s", folder=str(work)).stdout.splitlines(),
        }
        sys.stdout.write(json.dumps(result))
