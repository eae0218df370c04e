#!/usr/bin/env python3
"""Command line of the platform: `python3 manage.py up`, `python3 manage.py test`, and every Django command.

`up` and `test` need nothing but Python: they create `.venv` and restart themselves in it.
"""

import sys

# Checked before any other import: on an older Python those fail with a traceback.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"error: Python 3.11 or newer is required; this is Python {sys.version.split()[0]}.")

from pathlib import Path

ROOT = Path(__file__).resolve().parent
# Packages of the product are at the root, shared ones in `platform/`; both import by their short names.
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]

from launcher.main import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    sys.exit(main(root=ROOT, argv=sys.argv))
