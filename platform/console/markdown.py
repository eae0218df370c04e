"""Markdown that models and clients wrote, as HTML that a page can show.

CommonMark with tables and code blocks. What comes out is made twice safe: the parser takes HTML for text and knows no
images, and what it makes passes a strict allow-list. Nothing loads from anywhere: a picture becomes a line that says
where it would have come from, since its address alone could carry words of the conversation out. A link shows the host
that it leads to, so that its text cannot lie about that.
"""

from collections.abc import Sequence
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
"""Longer texts are shown as they are."""

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
    """The text as HTML; one that is too long as it is."""
    if len(text) > MAX_CHARACTERS:
        return plain(text)
    return _rendered(text)


def plain(text: str) -> SafeString:
    """The text as it is, in its lines."""
    return format_html('<p class="c-text">{}</p>', text)


def host_of(url: str) -> str:
    """Where a link leads: the host, or the address of a mail; empty for what is no address that can be trusted."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    if parts.scheme == "mailto":
        return unquote(parts.path)
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
        attribute_filter=_checked,
        link_rel=_REL,
        # A box that scrolls can be scrolled by keyboard.
        set_tag_attribute_values={"a": {"target": "_blank"}, "div": {"tabindex": "0"}},
    )
    return mark_safe(html)  # noqa: S308 - cleaned in the line above


def _checked(tag: str, name: str, value: str) -> str | None:
    """An attribute that may stay; of links those that lead somewhere else, and say so."""
    return None if name == "href" and not host_of(value) else value


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": _HIGHEST_NESTING})
    parser.enable(["table", "strikethrough"])
    # Instances decide by this which links and images are made; what is refused stays as it was written.
    parser.validateLink = _is_link  # type: ignore[method-assign]  # the documented way to set it
    for name, rule in _RULES.items():
        parser.add_render_rule(name, rule)
    return parser


def _is_link(url: str) -> bool:
    return bool(host_of(url))


def _unloaded(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """What stands in the place of an image."""
    token = tokens[index]
    host = host_of(str(token.attrGet("src") or ""))
    alt = token.content.strip()
    told = f"image from {host}, not loaded" if host else "image, not loaded"
    return f'<span class="c-unloaded">{escape(f"{alt} ({told})" if alt else told)}</span>'


def _link_close(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """The end of a link, and where it leads unless that is what it says."""
    opening = next(tokens[at] for at in range(index - 1, -1, -1) if tokens[at].type == "link_open")
    if opening.markup == "autolink":
        return "</a>"
    host = host_of(str(opening.attrGet("href") or ""))
    return f'</a> <span class="c-host">{escape(host)}</span>'


def _heading_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Headings are the page's own; those of a text only look like some."""
    return f'<p class="c-{tokens[index].tag}">'


def _heading_close(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "</p>\n"


def _code(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    return f'<pre class="c-pre"><code>{escape(tokens[index].content)}</code></pre>\n'


def _table_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """A table that is too wide scrolls in a box of its own."""
    return '<div class="c-scroll"><table>\n'


def _table_close(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "</table></div>\n"


def _cell_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    token = tokens[index]
    is_number = "right" in str(token.attrGet("style") or "")
    return f'<{token.tag} class="c-num">' if is_number else f"<{token.tag}>"


_RULES = {
    "image": _unloaded,
    "link_close": _link_close,
    "heading_open": _heading_open,
    "heading_close": _heading_close,
    "fence": _code,
    "code_block": _code,
    "table_open": _table_open,
    "table_close": _table_close,
    "th_open": _cell_open,
    "td_open": _cell_open,
}
