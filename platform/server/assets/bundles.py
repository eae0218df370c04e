"""Bundles: scripts or styles that are served as one file, because each request costs a round trip.

There is no build step: a bundle is joined when it is first used. Its URL contains a hash of its content, so browsers
may keep it for a year.
"""

import gzip
import re
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

from django.conf import settings
from django.contrib.staticfiles import finders
from django.templatetags.static import static

CACHE_FOREVER = "max-age=31536000, public, immutable"
_REFERENCE = re.compile(rb"""url\((["']?)(?!["']?(?:data:|https?:|/|\#))([^"')]+)\1\)""")


def static_content(name: str) -> bytes:
    """Return the content of a static file. Raises `FileNotFoundError` if no app has it."""
    path = finders.find(name)
    if not isinstance(path, str):
        raise FileNotFoundError(name)
    return Path(path).read_bytes()


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Static files of one type, in the order in which the browser has to read them."""

    name: str
    files: tuple[str, ...]

    @property
    def is_script(self) -> bool:
        """True for scripts, false for styles."""
        return self.name.endswith(".js")

    @property
    def content_type(self) -> str:
        """Content type of the joined file."""
        return f"text/{'javascript' if self.is_script else 'css'}; charset=utf-8"

    @cached_property
    def content(self) -> bytes:
        """The joined files."""
        # The semicolon keeps a directive `use strict` at the top of one script from applying to the others, which are
        # written for sloppy mode, and ends a last statement without one.
        joint = b"\n;\n" if self.is_script else b"\n"
        return b"".join(joint + self._part(name) for name in self.files)

    @cached_property
    def compressed(self) -> bytes:
        """The joined files, compressed with gzip."""
        return gzip.compress(self.content, mtime=0)

    @cached_property
    def path(self) -> str:
        """Path of the URL, with a hash of the content."""
        stem, _, suffix = self.name.rpartition(".")
        return static("bundles/") + f"{stem}.{sha256(self.content).hexdigest()[:12]}.{suffix}"

    def _part(self, name: str) -> bytes:
        content = static_content(name)
        if self.is_script:
            return content
        # The addresses in styles are relative to their own file, and the bundle is elsewhere.
        folder = f"{PurePosixPath(name).parent}/"
        return _REFERENCE.sub(lambda match: f'url("{static(urljoin(folder, match[2].decode()))}")'.encode(), content)


_UNFOLD = "unfold/js"
# Scripts of single pages, which their templates load.
_PAGE_SCRIPTS = {
    "playground.js": ("playground_lane.js", "playground.js"),
    "response.js": ("trace.js", "follow.js", "replay.js"),
    # Pages load it when they show JSON.
    "json_viewer.js": ("json_viewer.js",),
    "live.js": ("live.js",),
    "routes.js": ("routes.js",),
    "connect.js": ("connect.js",),
}
# Scripts of Django's and Unfold's widgets. All forms load the same ones.
FORM_SCRIPTS = (
    "admin/js/vendor/jquery/jquery.min.js",
    "admin/js/jquery.init.js",
    "admin/js/core.js",
    "admin/js/admin/RelatedObjectLookups.js",
    "admin/js/calendar.js",
    "admin/js/admin/DateTimeShortcuts.js",
)
# Select2, which forms load with their first field that searches: a third of their scripts (`search_fields.js`).
SEARCH_SCRIPTS = (
    "admin/js/vendor/select2/select2.full.min.js",
    "admin/js/vendor/select2/i18n/en.js",
    "admin/js/autocomplete.js",
    "unfold/js/select2.init.js",
)
_OUR_FILES = Path(__file__).resolve().parent.parent.parent.parent / "static" / "console"


def _ours(suffix: str) -> list[str]:
    # console.css comes first: the others override it.
    of_pages = {name for names in _PAGE_SCRIPTS.values() for name in names}
    names = {path.name for path in _OUR_FILES.glob(f"*.{suffix}")} - of_pages
    return [f"console/{name}" for name in sorted(names, key=lambda name: (name != "console.css", name))]


def _bundles() -> dict[str, tuple[str, ...]]:
    return {
        "console.css": (
            "unfold/fonts/inter/styles.css",
            "unfold/fonts/material-symbols/styles.css",
            *_ours("css"),
            "unfold/css/styles.css",
        ),
        # Without Chart.js, SimpleBar, and Alpine's sorting and anchors: no page uses them. Alpine comes last, as it
        # starts with the components that the others have registered.
        "console.js": (
            f"{_UNFOLD}/htmx/htmx.js",
            *_ours("js"),
            f"{_UNFOLD}/app.js",
            f"{_UNFOLD}/alpine/alpine.persist.js",
            f"{_UNFOLD}/alpine/alpine.resize.js",
            "alpine/alpine.csp.js",
        ),
        "forms.js": FORM_SCRIPTS,
        "select2.js": SEARCH_SCRIPTS,
        **{name: tuple(f"console/{file}" for file in names) for name, names in _PAGE_SCRIPTS.items()},
    }


BUNDLES = _bundles()


def bundle_named(name: str) -> Bundle:
    """Return a bundle. Raises `KeyError` for other names."""
    # During development the files change while the process runs.
    return Bundle(name=name, files=BUNDLES[name]) if settings.DEBUG else _joined_once(name)


@cache
def _joined_once(name: str) -> Bundle:
    return Bundle(name=name, files=BUNDLES[name])


def bundle_at(path: str) -> Bundle | None:
    """Return the bundle with the path of a URL."""
    if not path.startswith(static("bundles/")):
        return None
    return next((bundle for bundle in map(bundle_named, BUNDLES) if bundle.path == path), None)
