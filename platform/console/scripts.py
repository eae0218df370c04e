"""Scripts of lists and forms: those that they use, where Django and Unfold load all that they have."""

from collections.abc import Iterable
from typing import Any

from django import forms

# Without those for fields that are derived from others (urlify, xregexp, prepopulate): no form has such fields.
FORM_SCRIPTS = (
    "admin/js/vendor/jquery/jquery.min.js",
    "admin/js/jquery.init.js",
    "admin/js/core.js",
    "admin/js/admin/RelatedObjectLookups.js",
)


def filter_media(filters: Iterable[Any]) -> forms.Media:
    """Return the scripts and styles of a list's filters. The page loads them when the filters are opened."""
    media = forms.Media()
    for entry in filters:
        form: Any = getattr(entry[1] if isinstance(entry, list | tuple) else entry, "form_class", None)
        if hasattr(form, "Media"):
            media += forms.Media(form.Media)
    return media
