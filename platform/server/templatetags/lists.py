"""Template filters of lists."""

import re

from django import forms, template
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from unfold.templatetags.unfold_list import ROW_CLASSES

from console.active_filters import filter_label
from server.assets.bundles import FORM_SCRIPTS, SEARCH_SCRIPTS, bundle_named

register = template.Library()
register.filter("filter_label", filter_label)
_SOURCE = re.compile(r'(?:src|href)="([^"]+)"')
# First letter of the label that stands before a cell on narrow screens.
_LABEL = re.compile(r'(?<= data-label=")[a-z]')
_CELL_CLASSES = " ".join(ROW_CLASSES)
_TEXT_CELL = re.compile(r">([^<>]+)(?=</t[dh]>$)")


@register.filter
def short_cell(cell: SafeString) -> SafeString:
    """Replace the 26 classes of a cell, which were half of a page, by the class `c-cell` of the same look.

    Text gets an element of its own, because a cell of a table cannot limit its lines.
    """
    short = cell.replace(_CELL_CLASSES, "c-cell")
    short = _TEXT_CELL.sub(r'><span class="c-cut" dir="auto">\1</span>', short)
    return mark_safe(_LABEL.sub(lambda match: match[0].upper(), short, count=1))  # noqa: S308 - only the classes change


@register.filter
def script_urls(media: forms.Media) -> str:
    """Return the URLs of scripts, in their order, separated by spaces."""
    return " ".join(_SOURCE.findall("".join(media.render_js())))


@register.filter
def form_scripts(media: forms.Media) -> SafeString:
    """Return the elements of a form's scripts, with one element for those of the bundle.

    If the form has fields that search, an attribute has the URL of their scripts.
    """
    bundled, search = ({static(name) for name in names} for names in (FORM_SCRIPTS, SEARCH_SCRIPTS))
    urls = _SOURCE.findall("".join(media.render_js()))
    later = format_html(' data-search-fields="{}"', bundle_named("select2.js").path) if search & {*urls} else ""
    first = format_html('<script src="{}"{}></script>', bundle_named("forms.js").path, later)
    others = format_html_join("", '<script src="{}"></script>', ((url,) for url in urls if url not in bundled | search))
    return first + others


@register.filter
def style_urls(media: forms.Media) -> str:
    """Return the URLs of style sheets, separated by spaces."""
    return " ".join(_SOURCE.findall("".join(media.render_css())))


@register.simple_tag(takes_context=True)
def page_heading(context: template.Context) -> dict[str, object] | None:
    """Return the title of a page of a model and the link to its list; None for other pages, which have their own."""
    opts = context.get("opts")
    if opts is None:
        return None
    if context.get("cl") is not None:
        return {"title": capfirst(opts.verbose_name_plural)}
    original = context.get("original")
    is_form = context.get("adminform") is not None
    if context.get("add") and is_form:
        title = f"Add {opts.verbose_name}"
    elif is_form and original is not None and context.get("has_change_permission"):
        title = f"Edit {opts.verbose_name} {original}"
    else:
        title = str(original or context.get("object") or context.get("title") or capfirst(opts.verbose_name_plural))
    list_url = reverse(f"admin:{opts.app_label}_{opts.model_name}_changelist")
    return {"title": title, "list_url": list_url, "list_title": capfirst(opts.verbose_name_plural)}
