"""The Python interpreter of a container: runs cells one after the other in one persistent namespace.

The process is under the control of the model's code, so the agent validates everything that it reports. The agent
starts it with the file descriptor of a socket, which carries cells in one direction and results in the other.
"""

import ast
import json
import os
import socket
import struct
import sys
import traceback
import types
from contextlib import suppress
from typing import Any

MAX_VALUE = 100_000
DATA = "/mnt/data"
# The variable in which a cell finds the effect id of its call. `agent` has the same name.
EFFECT_ID = "RESPONSES_PLATFORM_EFFECT_ID"
_NAME = "<cell>"


class Cells:
    """The namespace that all cells share."""

    def __init__(self) -> None:
        self._main = types.ModuleType("__main__")
        sys.modules["__main__"] = self._main
        self._figures = 0

    def run(self, code: str, *, effect_id: str) -> dict[str, Any]:
        """Execute a cell and return the value of its last expression, its traceback and the names of its figures."""
        result: dict[str, Any] = {"value": None, "error": None, "images": []}
        # The interpreter outlives the cell, and the id of an earlier call must not be used for the effects of this one.
        os.environ.pop(EFFECT_ID, None)
        if effect_id:
            os.environ[EFFECT_ID] = effect_id
        try:
            result["value"] = self._execute(code)
            result["images"] = self._save_figures()
        except SystemExit as ended:
            result["error"] = f"SystemExit: {ended.code}"
        except BaseException as error:
            # Also KeyboardInterrupt and the like: a cell must not end the interpreter, which keeps the variables.
            result["error"] = _traceback(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        return result

    def _execute(self, code: str) -> "str | None":
        tree = ast.parse(code, _NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, _NAME, "exec"), self._main.__dict__)  # noqa: S102 - running code is the purpose
        if last is None or not isinstance(last, ast.Expr):
            return None
        value = eval(compile(ast.Expression(last.value), _NAME, "eval"), self._main.__dict__)  # noqa: S307
        if value is None:
            return None
        self._main.__dict__["_"] = value
        return repr(value)[:MAX_VALUE]

    def _save_figures(self) -> "list[str]":
        # Only if the cell imported matplotlib: importing it here would slow down every cell.
        plots: Any = sys.modules.get("matplotlib.pyplot")
        if plots is None:
            return []
        names = []
        for number in plots.get_fignums():
            self._figures += 1
            name = f"figure-{os.getpid()}-{self._figures}.png"
            plots.figure(number).savefig(os.path.join(DATA, name), format="png")  # noqa: PTH118
            names.append(name)
        plots.close("all")
        return names


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    # Frames of this module would confuse the model.
    while trace is not None and trace.tb_frame.f_code.co_filename != _NAME:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))[-MAX_VALUE:]


def _exactly(channel: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = channel.recv(size - len(found))
        if not piece:
            os._exit(0)
        found += piece
    return found


def main() -> None:
    """Run cells until the agent closes the socket."""
    channel, own_pid, cells = socket.socket(fileno=int(sys.argv[1])), os.getpid(), Cells()
    os.set_inheritable(channel.fileno(), False)  # noqa: FBT003 - the standard library's
    sys.argv[:] = [""]
    sys.path.insert(0, DATA)
    while True:
        (length,) = struct.unpack(">I", _exactly(channel, 4))
        cell = json.loads(_exactly(channel, length))
        result = cells.run(cell["code"], effect_id=cell["effect_id"])
        # A cell that forked returns here in the child as well; only the parent may answer.
        if os.getpid() != own_pid:
            os._exit(0)
        written = json.dumps(result).encode()
        channel.sendall(struct.pack(">I", len(written)) + written)


if __name__ == "__main__":
    main()
