"""Template tag for bundles."""

from django import template

from server.assets.bundles import bundle_named

register = template.Library()


@register.simple_tag
def bundle(name: str) -> str:
    """Return the URL of a bundle."""
    return bundle_named(name).path
