"""`/docs/guide/` and `/llms.txt`: the documentation site, built on the first request after its sources changed."""

import logging
import mimetypes
import subprocess
import sys
import threading
import time
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from guide.sources import ROOT, fingerprint, source_files

logger = logging.getLogger(__name__)

_BUILD_SECONDS = 60
_RETRY_SECONDS = 5
_PAUSE_SECONDS = 30  # after a failed build
_TYPES = {
    ".md": "text/markdown; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# The pages contain no inline scripts or styles and load nothing from elsewhere.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'"
)
_building = threading.Lock()
_failures: dict[Path, float] = {}


@require_safe
def page(request: HttpRequest, path: str) -> HttpResponseBase:
    """Respond with a file of the site, or with its 404 page."""
    site = _site()
    if site is None:
        text = "The documentation is being built. Try again in a few seconds.\n"
        headers = {"Retry-After": str(_RETRY_SECONDS)}
        return HttpResponse(text, status=HTTPStatus.SERVICE_UNAVAILABLE, content_type="text/plain", headers=headers)
    found = _files(site).get(path)
    if found is None:
        missing = _files(site).get("404.html")
        if missing is None:
            raise Http404
        return _response(missing, status=HTTPStatus.NOT_FOUND)
    response = _response(found)
    conditional = get_conditional_response(request, etag=response["ETag"], response=response)
    return conditional or response


def _response(file: Path, *, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    content = file.read_bytes()
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    headers = {
        "Content-Security-Policy": _POLICY,
        # Revalidated each time: a page and the scripts and styles that it names must be of the same build.
        "Cache-Control": "no-cache",
        "ETag": f'"{sha256(content).hexdigest()[:32]}"',
    }
    return HttpResponse(content, status=status, content_type=kind, headers=headers)


def _site() -> Path | None:
    """Return the directory of the current site, after building it if necessary; None if that is not possible now."""
    directory = settings.GUIDE_DIR
    site = directory / _current(tuple((path, path.stat().st_mtime_ns) for path in source_files()))
    if site.exists():
        return site
    if time.monotonic() - _failures.get(site, -_PAUSE_SECONDS) < _PAUSE_SECONDS:
        return None
    # One build per process: requests that wait for the same build would occupy the threads of the console.
    if not _building.acquire(blocking=False):
        return None
    try:
        # A process of its own, because the libraries of the build would stay in the memory of this one.
        command = [sys.executable, "-m", "guide.build", str(directory.resolve())]
        environment = {"PYTHONPATH": str(ROOT / "platform"), "PATH": "", "LC_ALL": "C.UTF-8"}
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    except subprocess.CalledProcessError as failure:
        _failures[site] = time.monotonic()
        logger.error("The documentation could not be built: %s", failure.stderr)  # noqa: TRY400 - not our traceback
        return None
    except (OSError, subprocess.TimeoutExpired):
        _failures[site] = time.monotonic()
        logger.exception("The documentation could not be built")
        return None
    finally:
        _building.release()
    return site if site.exists() else None


@cache
def _files(site: Path) -> dict[str, Path]:
    # Only built files can be requested, so no path leads out of the site.
    return {str(path.relative_to(site)): path for path in site.rglob("*") if path.is_file()}


_fingerprints: dict[str, str] = {}


def _current(sources: tuple[tuple[Path, int], ...]) -> str:
    """Return the fingerprint of the sources; they are only read again if one of them has changed."""
    key = str(hash(sources))
    if key not in _fingerprints:
        _fingerprints.clear()
        _fingerprints[key] = fingerprint()
    return _fingerprints[key]
