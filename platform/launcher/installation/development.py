"""Check that the packages for development are installed; `up` installs only those that the platform needs.

Commands that need them call `require_packages` before they import anything else. `python -m
launcher.installation.development` checks the packages of the interpreter that runs it.
"""

import sys
from importlib.util import find_spec

# Locked and installed together with all others of the group `dev` in pyproject.toml.
_PACKAGES = ("psutil", "pytest")
MESSAGE = (
    "error: This command needs the packages for development: "
    "install them with `python3 manage.py install --dev`, and use .venv/bin/python."
)


def require_packages() -> None:
    """Exit with a message if the packages for development are missing."""
    if any(find_spec(name) is None for name in _PACKAGES):
        sys.exit(MESSAGE)


if __name__ == "__main__":
    require_packages()
