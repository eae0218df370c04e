"""Build of the documentation site into a directory that is named after a hash of its sources."""

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

from mkdocs.commands.build import build as build_site
from mkdocs.config import load_config

from guide.sources import ROOT, fingerprint


def build(directory: Path) -> Path:
    """Build the site below ``directory`` unless it is up to date, delete older builds, and return its path."""
    site = directory / fingerprint()
    if site.exists():
        return site
    directory.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that no process serves a part of it and several can build at the same time.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as temporary:
        build_site(load_config(str(ROOT / "mkdocs.yml"), site_dir=f"{temporary}/site"))
        try:
            (Path(temporary) / "site").rename(site)
        except OSError:
            if not site.exists():
                raise
    for older in directory.iterdir():
        if older != site and not older.name.startswith(".build-"):
            shutil.rmtree(older, ignore_errors=True)
    return site


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # MkDocs logs problems and only exits
    os.chdir(ROOT)
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
