"""Hooks of MkDocs (mkdocs.yml): pages from outside docs/, anchors as on GitHub, Markdown copies, llms.txt."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

from guide.sources import INCLUDED, ROOT

PREFIX = "/docs/guide/"
# The home page takes the place of the README, which is for visitors of the repository.
_SITE_PATHS = {**INCLUDED, "README.md": "index.md"}
_REPOSITORY_PATHS = {site: repository for repository, site in INCLUDED.items()}
_LINK = re.compile(r"\]\((?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^( *)(```|~~~)")
_markdown: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Use GitHub's anchors, so that a link to a section works in the repository and on the site."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def slugify(heading: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    _markdown.clear()
    for source, target in INCLUDED.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Change links that lead out of docs/, or from other files into it, to the pages of the site."""
    site_path = page.file.src_uri
    repository_path = _REPOSITORY_PATHS.get(site_path, f"docs/{site_path}")
    lines, fence = [], None
    for line in markdown.split("\n"):
        if marker := _FENCE.match(line):
            fence = None if marker[2] == fence else fence or marker[2]
        lines.append(line if fence else _LINK.sub(lambda link: _redirect(link, repository_path, site_path), line))
    _markdown[site_path] = "\n".join(lines)
    return _markdown[site_path]


def _redirect(link: re.Match[str], repository_path: str, site_path: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path), link[1]))
    if target in _SITE_PATHS:
        target = _SITE_PATHS[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    else:
        raise PluginError(f"{repository_path} links to {target}, which is not part of the site.")
    return f"]({posixpath.relpath(target, posixpath.dirname(site_path) or '.')}{link[2] or ''})"


def on_nav(nav: Navigation, *, config: MkDocsConfig, **_: Any) -> Navigation:
    """Keep the navigation for llms.txt."""
    config.extra["nav"] = nav
    return nav


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write each page as Markdown next to its HTML, and llms.txt."""
    site = Path(config.site_dir)
    for path, markdown in _markdown.items():
        (site / path).write_text(markdown)
    (site / "llms.txt").write_text(_llms_txt(config))


def _llms_txt(config: MkDocsConfig) -> str:
    # https://llmstxt.org: a title, a summary, and per section a list of links with notes.
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    nav: Navigation = config.extra["nav"]
    loose = [item for item in nav.items if isinstance(item, Page)]
    sections = [item for item in nav.items if isinstance(item, Section)]
    groups = [("Start", loose), *((section.title, _pages(section)) for section in sections)]
    for title, pages in groups:
        lines += [f"## {title}", ""]
        lines += [f"- [{page.title}]({PREFIX}{page.file.src_uri}): {_summary(page)}" for page in pages]
        lines.append("")
    return "\n".join(lines)


def _pages(section: Section) -> list[Page]:
    pages: list[Page] = []
    for child in section.children:
        pages += _pages(child) if isinstance(child, Section) else [child] if isinstance(child, Page) else []
    return pages


def _summary(page: Page) -> str:
    """Return the first sentence below the title, as plain text."""
    paragraphs = _markdown[page.file.src_uri].split("\n\n")
    prose = next((block for block in paragraphs if block.strip() and block.lstrip()[0] not in "#|`-!<"), "")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())).replace("`", "").replace("**", "")
    return re.split(r"(?<=[.:]) ", text, maxsplit=1)[0].rstrip(":.") + "."
