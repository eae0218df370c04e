"""Rendering of untrusted Markdown, written by models and clients, as safe HTML.

Supports CommonMark with tables. There are two layers of protection: the parser treats HTML as text and renders no
images, and its output passes a strict allow-list. No external resource is loaded: an image becomes a text with its
host, because a request for its URL alone could carry parts of the conversation to another server. Each link is followed
by its host, so that its text cannot be misleading.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from urllib.parse import unquote, urlsplit

import nh3
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

MAX_CHARACTERS = 64 * 1024
"""Longer texts are shown as plain text."""

_SCHEMES = {"http", "https", "mailto"}
_TAGS = {
    "a", "blockquote", "br", "code", "del", "div", "em", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "table",
    "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_CLASSES = {
    "p": {f"c-h{level}" for level in range(1, 7)},
    "span": {"c-host", "c-unloaded"},
    "div": {"c-scroll"},
    "pre": {"c-pre"},
    "th": {"c-num"},
    "td": {"c-num"},
}
_REL = "noopener noreferrer nofollow"
_HIGHEST_NESTING = 20


def render(text: str) -> SafeString:
    """Return the text as HTML; texts above `MAX_CHARACTERS` as plain text."""
    # Parsing time grows with the length of the text, and a page may show dozens of texts.
    if len(text) > MAX_CHARACTERS:
        return plain(text)
    return _rendered(text)


def plain(text: str) -> SafeString:
    """Return the text without formatting, with its line breaks."""
    return format_html('<p class="c-text">{}</p>', text)


def host_of(url: str) -> str:
    """Return the host or mail address of a link; empty for URLs that are invalid or could mislead."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    if parts.scheme == "mailto":
        return unquote(parts.path)
    # `https://bank.example@evil.example` looks like the bank's; browsers read a backslash as a slash, parsers do not.
    if parts.scheme not in _SCHEMES or "@" in parts.netloc or "\\" in unquote(url):
        return ""
    return host


@lru_cache(maxsize=256)
def _rendered(text: str) -> SafeString:
    html = nh3.clean(
        _parser().render(text),
        tags=_TAGS,
        clean_content_tags={"script", "style"},
        attributes={"*": set(), "a": {"href"}, "ol": {"start"}},
        allowed_classes=_CLASSES,
        url_schemes=_SCHEMES,
        # Relative links would lead to pages of the admin.
        attribute_filter=lambda _, name, value: None if name == "href" and not host_of(value) else value,
        link_rel=_REL,
        # Focusable, so that a scrolling box can be scrolled by keyboard.
        set_tag_attribute_values={"a": {"target": "_blank"}, "div": {"tabindex": "0"}},
    )
    return mark_safe(html)  # noqa: S308 - sanitised above


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": _HIGHEST_NESTING})
    parser.enable(["table", "strikethrough"])
    # The parser leaves links and images that this function refuses as text.
    parser.validateLink = lambda url: bool(host_of(url))  # type: ignore[method-assign]  # the documented way to set it
    for name, rule in _RULES.items():
        parser.add_render_rule(name, rule)
    return parser


def _unloaded(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    token = tokens[index]
    host = host_of(str(token.attrGet("src") or ""))
    alt = token.content.strip()
    note = f"image from {host}, not loaded" if host else "image, not loaded"
    return f'<span class="c-unloaded">{escape(f"{alt} ({note})" if alt else note)}</span>'


def _link_close(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    # The text of an autolink is its URL, so it needs no host.
    opening = next(tokens[at] for at in range(index - 1, -1, -1) if tokens[at].type == "link_open")
    if opening.markup == "autolink":
        return "</a>"
    host = host_of(str(opening.attrGet("href") or ""))
    return f'</a> <span class="c-host">{escape(host)}</span>'


def _heading_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    # Not real headings: these would disturb the outline of the page for screen readers.
    return f'<p class="c-{tokens[index].tag}">'


def _code(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    return f'<pre class="c-pre"><code>{escape(tokens[index].content)}</code></pre>\n'


def _cell_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    token = tokens[index]
    is_number = "right" in str(token.attrGet("style") or "")
    return f'<{token.tag} class="c-num">' if is_number else f"<{token.tag}>"


_RULES: dict[str, Callable[..., str]] = {
    "image": _unloaded,
    "link_close": _link_close,
    "heading_open": _heading_open,
    "heading_close": lambda *_: "</p>\n",
    "fence": _code,
    "code_block": _code,
    # Wide tables scroll in their own box instead of widening the page.
    "table_open": lambda *_: '<div class="c-scroll"><table>\n',
    "table_close": lambda *_: "</table></div>\n",
    "th_open": _cell_open,
    "td_open": _cell_open,
}


_MARKUP = re.compile(
    r"```\w*|`+|\*\*|__|~~"  # code, bold, strikethrough
    r"|(?:(?<=\s)|^)#{1,6}\s+|(?:(?<=\s)|^)>\s+"  # headings, quotations
    r"|\|?(?:\s*:?-{3,}:?\s*\|)+(?:\s*:?-{3,}:?)?"  # the line below the head of a table
)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\)|$)")
_EMPHASIS = re.compile(r"(?<![\w*_])([*_])(?=\S)([^*_]*[^*_\s])\1(?![\w*_])")


def without_markup(text: str) -> str:
    """Return a preview of Markdown, which may be cut anywhere, as plain text on one line."""
    text = _LINK.sub(r"\1", text)
    text = _EMPHASIS.sub(r"\2", _MARKUP.sub(" ", text) if "|" in text else _MARKUP.sub("", text))
    line = " ".join(text.split())
    if not line.startswith("|"):
        return line
    # A table: rows are separated by semicolons, cells by commas.
    return ", ".join(cell.strip() for cell in line.replace("| |", ";").strip("| ").split("|")).replace(" ;", ";")
