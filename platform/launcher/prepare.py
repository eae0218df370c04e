"""Migrations, demo objects and model servers of this machine, in one process: `python -m launcher.prepare FILE`.

Writes the JSON object of `prepare_demo`, and the model servers that were found, to FILE (mode 0600).
"""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from launcher.errors import RefusedStart
from launcher.local_models import model_servers
from launcher.local_models.model_servers import KnownUpstream, Offer, Search
from launcher.state import write_private


def main(arguments: Sequence[str]) -> None:
    parser = ArgumentParser(prog="launcher.prepare")
    parser.add_argument("file", type=Path)
    parser.add_argument("--ask-port", dest="ports", type=int, action="append", default=[])
    parser.add_argument("--connect", action="store_true")
    # The remaining arguments are options of `prepare_demo`.
    options, others = parser.parse_known_args(arguments)
    search = Search(options.ports)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
    # All commands run in one process: starting Django for each would make every start seconds longer.
    django.setup()
    call_command("migrate", "--noinput")
    output = StringIO()
    # Passed as a variable, because arguments of processes are visible to other users.
    if key := os.environ.get("MODEL_FILE_KEY"):
        others += ["--model-file-key", key]
    call_command("prepare_demo", "--json", *others, stdout=output)
    made = json.loads(output.getvalue())
    upstreams = made.pop("upstreams")
    known = [KnownUpstream(**{**upstream, "models": tuple(upstream["models"])}) for upstream in upstreams]
    found = model_servers.offers(search.result(), known=known)
    made["model_servers"] = [asdict(offer) for offer in (_connect(found) if options.connect else found)]
    write_private(path=options.file, text=json.dumps(made))


def _connect(found: Iterable[Offer]) -> Iterable[Offer]:
    for offer in found:
        if not offer.can_connect:
            yield offer
            continue
        try:
            call_command(*offer.arguments, stdout=StringIO())
        except CommandError as error:
            # The platform works without it, and the offer is shown with its command.
            print(f"error: {offer.title} could not be connected: {error}", file=sys.stderr)
            yield offer
        else:
            yield replace(offer, is_connected=True, routed=offer.models)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ImproperlyConfigured as wrong:
        refusal = RefusedStart.of(wrong)
        print(f"error: {refusal}", file=sys.stderr)
        sys.exit(refusal.exit_code)
