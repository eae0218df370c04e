# mypy: allow-subclassing-any
"""Templates without indentation, which was a third of each page: templates include each other many levels deep."""

import re

from django.template import Origin
from django.template.loaders import app_directories, filesystem
from typing_extensions import override

_INDENTATION = re.compile(r"\s*\n\s*")
_PREFORMATTED = re.compile(r"<(pre|textarea|script)\b")


def compact(source: str) -> str:
    """Return a template with one line break in place of line breaks and indentation."""
    return source if _PREFORMATTED.search(source) else _INDENTATION.sub("\n", source)


class _Compact(filesystem.Loader):
    """Compacts pages; mails and other texts stay as they are."""

    @override
    def get_contents(self, origin: Origin) -> str:
        source = super().get_contents(origin)
        return compact(source) if str(origin.name).endswith(".html") else source


class FilesystemLoader(_Compact):
    """Loader of `templates/`."""


class AppDirectoriesLoader(_Compact, app_directories.Loader):
    """Loader of the templates of installed apps."""
