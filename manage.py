#!/usr/bin/env python3
"""Command line of the platform: `python3 manage.py up`, `python3 manage.py test`, and every Django command.

`up`, `test` and `install` need nothing but Python: they create `.venv` and restart themselves in it.
"""

import os
import sys

# Checked before any other import, and in the syntax of Python 2: on an older Python the rest fails with a traceback.
if sys.version_info < (3, 11):  # noqa: UP036
    message = "error: Python 3.11 or newer is required; this is Python %s: install a newer one, or name it, as in %s."
    sys.exit(message % (sys.version.split()[0], "`python3.12 manage.py up`"))

ROOT = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib may be a stray module, see below
# Packages of the product are at the root, shared ones in `platform/`; both import by their short names.
SOURCE_ROOTS = [os.path.join(ROOT, "platform"), ROOT]  # noqa: PTH118
# Inherited values could replace modules of ours, of the libraries, or the standard library: a django.py in a directory
# of PYTHONPATH is enough. They may have affected this process, so it starts again without them.
INHERITED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONPLATLIBDIR", "PYTHONINSPECT")
inherited = [name for name in INHERITED if os.environ.get(name)]
if inherited and (inherited != ["PYTHONPATH"] or os.environ["PYTHONPATH"] != os.pathsep.join(SOURCE_ROOTS)):
    for name in inherited:
        del os.environ[name]
    if not sys.flags.ignore_environment:
        os.execv(sys.executable, [sys.executable] + sys.orig_argv[1:])  # noqa: RUF005, S606 - syntax of Python 2
sys.path[:0] = SOURCE_ROOTS

from pathlib import Path  # noqa: E402 - the path above comes first

from launcher.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(root=Path(ROOT), argv=sys.argv))
