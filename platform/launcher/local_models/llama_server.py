"""llama.cpp's server from the package xllamacpp.

    python -m launcher.local_models.llama_server --model FILE --port PORT …

Supports only those options and variables of llama.cpp's own program that `up` uses.
"""

import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import WRONG_SETTINGS
from launcher.local_models.model_file import KEY_VARIABLE, THREADS_VARIABLE


def main(arguments: Sequence[str]) -> int:
    import xllamacpp

    parser = ArgumentParser(prog="launcher.local_models.llama_server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True)
    options = parser.parse_args(arguments)
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = [options.alias]
    params.hostnames = [options.host]
    params.port = options.port
    # Without a key, pages of other sites could use a server on this machine.
    params.api_keys = [os.environ[KEY_VARIABLE]]
    params.ui = False
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = int(os.environ[THREADS_VARIABLE])
        # Without polling, waiting threads leave their cores to the platform.
        cpu.poll = 0
    try:
        if size := os.environ.get("LLAMA_ARG_CTX_SIZE"):
            params.n_ctx = int(size)
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError) as failed:
        # A restart would not help. What llama.cpp prints before says more than its error.
        print(f"error: llama.cpp cannot load {options.model}; model-server.log has the cause ({failed})", flush=True)
        return WRONG_SETTINGS
    print(f"Listening on {server.listening_address}", flush=True)
    # The server runs in its own threads until a signal ends the process.
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
