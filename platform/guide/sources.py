"""The files that the documentation site is built from."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files outside docs/ that are part of the site, by their path in the repository.
INCLUDED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "static/console/mark.svg": "img/mark.svg",
}


def source_files() -> list[Path]:
    """Return all files on which the site depends, sorted."""
    paths = [ROOT / "mkdocs.yml", *(ROOT / name for name in INCLUDED)]
    for folder in ("docs", "platform/guide"):
        paths += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(paths)


def fingerprint() -> str:
    """Return a hash of the sources' names and contents."""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]
