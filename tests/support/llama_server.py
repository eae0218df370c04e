"""A scripted llama-server: accepts its options and variables, needs time to load, and requires its key.

`python -m tests.support.llama_server --model FILE --host HOST --port PORT --alias NAME`
"""

import os
import threading
import time
from argparse import ArgumentParser

from tests.support.model_server import model_server, models

LOADING_SECONDS = 0.5


def main() -> None:
    parser = ArgumentParser()
    for name in ("model", "host", "port", "alias"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    time.sleep(LOADING_SECONDS)
    pages = {"/health": {"status": "ok"}, "/v1/models": models(options.alias, owner="llamacpp")}
    with model_server(pages, port=int(options.port), key=os.environ["LLAMA_API_KEY"]):
        threading.Event().wait()


if __name__ == "__main__":
    main()
