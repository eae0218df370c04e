#!/usr/bin/env python3
"""The platform's one command: `python3 manage.py up`, `python3 manage.py test`, and every Django command.

`up` and `test` need nothing but this Python: they prepare `.venv` themselves and go on in it.
"""

import sys

# Before anything newer is imported: an older Python would answer with a traceback.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"error: This needs Python 3.11 or newer, and this is Python {sys.version.split()[0]}.")

from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]

from launcher.main import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    sys.exit(main(root=ROOT, argv=sys.argv))
