# mypy: allow-subclassing-any
"""Admin pages of prices: the price list, the prices on a model's page, and the published prices beside them."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import display, register
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import TabularInline

from console.widgets import badge, column
from core.clock import now
from routing import price_catalog, price_updates
from routing.price_updates import PriceComparison
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.permissions import ByRole, PlatformOnly
from tenants.console.roles import ADMINISTRATORS_ONLY, OPERATORS
from tenants.console.site import page
from tenants.console.viewer import Viewer
from tenants.models import Model, Price
from tenants.prices import NO_PRICE, amount, label, same_price

_CONDITIONS = ("dimension", "tool", "service_tier", "batch", "above_tokens", "cache_seconds", "hours", "valid_from")
_FIELDS = ("dimension", "amount", "per", *_CONDITIONS[1:])


class PriceForm(forms.ModelForm[Price]):
    """A price. After a person has changed it, it no longer counts as published."""

    class Meta:
        model = Price
        fields = ["model", *_FIELDS]

    def clean_amount(self) -> Any:
        """Return the amount without the zeros that the column adds."""
        value = self.cleaned_data["amount"]
        return value.normalize() if value is not None else value

    @override
    def save(self, commit: bool = True) -> Any:
        if self.has_changed():
            self.instance.source = "entered"
        return super().save(commit)


class PriceFormSet(BaseInlineFormSet[Price, Model, Any]):
    """Prices of a model, of which no two may be for the same dimension and conditions."""

    @override
    def clean(self) -> None:
        """Reject duplicates: the database would, but without a message."""
        super().clean()
        seen = set()
        for form in self.forms:
            if not form.cleaned_data or form.cleaned_data.get("DELETE"):
                continue
            key = tuple(form.cleaned_data.get(name) for name in _CONDITIONS)
            if key in seen:
                form.add_error("dimension", "There is a price for this dimension and these conditions already.")
            seen.add(key)


class PriceInline(ByRole, TabularInline):
    """Prices of a model."""

    model = Price
    form = PriceForm
    formset = PriceFormSet
    viewers = ADMINISTRATORS_ONLY
    extra = 0
    tab = True
    ordering = ["pk"]
    fields = [*_FIELDS, "source"]
    readonly_fields = ["source"]
    verbose_name_plural = "prices"


@register(Price)
class PriceAdmin(AuditedAdmin, PlatformOnly):
    """All prices. Prices without a model belong to the platform's hosted tools."""

    empty_text = "Without a price, the cost of a model is unknown, and budgets cannot limit it."
    add_label = "Add a price"

    form = PriceForm
    list_display = ["what", "model_link", "upstream", "published", "source"]
    list_filter = ["dimension", "service_tier", "batch", "source"]
    list_fullwidth = True
    search_fields = ["model__name", "model__upstream__name", "tool"]
    ordering = ["model__name", "model__upstream__name", "pk"]
    autocomplete_fields = ["model"]
    readonly_fields = ["source"]
    fieldsets = [(None, {"fields": ["model", ("dimension", "tool"), ("amount", "per"), "source"]}),
                 ("Conditions", {"fields": [("service_tier", "batch"), ("above_tokens", "cache_seconds"),
                                            ("hours", "valid_from")]})]  # fmt: skip
    what = column("Price", lambda row: label(row.entry().stored()))
    upstream = column("Upstream", lambda row: row.model.upstream.name if row.model else "–")

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("model__upstream").defer("model__upstream__api_key")

    @display(description="Model")
    def model_link(self, row: Price) -> SafeString | str:
        if row.model is None:
            return "hosted tools"
        url = reverse("admin:tenants_model_change", args=[row.model.pk])
        return format_html('<a class="c-link" href="{}">{}</a>', url, row.model.name)

    @display(description="Published price")
    def published(self, row: Price) -> SafeString | str:
        model = row.model
        listed = model and price_catalog.find(model.upstream.base_url, model.upstream_model or model.name, at=now())
        if not listed:
            return "–"
        mine = row.entry()
        same = [entry for entry in listed.prices.entries if same_price(entry) == same_price(mine)]
        found = next((entry for entry in same if entry.valid_from == mine.valid_from), None)
        if found is None:
            return NO_PRICE
        is_equal = found.amount * mine.per == mine.amount * found.per
        return badge("same", "success") if is_equal else badge(amount(found.amount), "warning")


def described(comparison: PriceComparison) -> dict[str, Any]:
    """Return the template context that shows the published prices beside the prices of a model."""
    return {
        "listed": comparison.listed,
        "source": price_catalog.source(),
        "is_current": comparison.is_current,
        "added": [label(entry.stored()) for entry in comparison.added],
        "changed": [f"{label(new.stored())} instead of {amount(old.amount)}" for old, new in comparison.changed],
        "removed": [label(entry.stored()) for entry in comparison.removed],
        "kept": [label(entry.stored()) for entry in comparison.kept],
    }


@page("models/<int:model_id>/prices/", name="model_prices", viewers=OPERATORS)
def use_published_prices(request: HttpRequest, viewer: Viewer, model_id: int) -> HttpResponseBase:
    """Apply the published prices to a model (POST). Prices that people entered remain."""
    model = Model.objects.select_related("upstream").defer("upstream__api_key").filter(pk=model_id).first()
    if model is None:
        raise Http404
    if request.method == "POST":
        comparison = price_updates.compare(model, at=now())
        if comparison is None:
            messages.error(request, "No published prices are known for this model.")
        else:
            price_updates.apply(comparison, actor=viewer.actor)
            messages.success(request, "The published prices were stored.")
    return HttpResponseRedirect(reverse("admin:tenants_model_change", args=[model_id]))
