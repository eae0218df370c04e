# mypy: allow-subclassing-any
"""Static files whose URLs contain a hash of their content, so that browsers may keep them."""

from functools import lru_cache
from hashlib import sha256

from django.contrib.staticfiles.storage import StaticFilesStorage
from typing_extensions import override

from server.assets.bundles import static_content

# Unfold's widgets name the long script, which has the same content.
_MINIFIED = {"admin/js/vendor/select2/select2.full.js": "admin/js/vendor/select2/select2.full.min.js"}


@lru_cache(maxsize=512)
def version_of(name: str) -> str:
    """Return a hash of the content of a static file; empty for folders and unknown names."""
    try:
        return sha256(static_content(name)).hexdigest()[:12]
    except (FileNotFoundError, IsADirectoryError):
        return ""


class VersionedStaticFilesStorage(StaticFilesStorage):
    """Adds the hash as a query: the files are served under their own names, from the folders of the packages."""

    @override
    def url(self, name: str | None) -> str:
        name = _MINIFIED.get(name or "", name)
        url = super().url(name)
        version = version_of(name) if name else ""
        return f"{url}?{version}" if version else url
