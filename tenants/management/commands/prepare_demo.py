"""`manage.py prepare_demo`: create a team with a key, an administrator and an upstream for a first start."""

import json
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from django.db.models import Prefetch, Q
from typing_extensions import override

from core.crypto import keyed_digest
from tenants import scope, services
from tenants.models import ApiKey, Model, Team, Upstream
from tenants.prices import PriceList

_TEAM = "demo"
_ADMIN = "admin"
_MODEL_FILE = "model-file"
_LLAMA_CAPABILITIES = {"forced_tool_choice": False}
_EMBEDDING_MODEL = "demo-embedding"
# US dollars per million tokens, so that keys with a hard budget can use the models, and pages about spend have data.
_DEMO_PRICES = {
    "demo": PriceList.simple(input="0.25", cached_input="0.025", output="2"),
    "demo-reasoning": PriceList.simple(input="1.10", output="4.40"),
    _EMBEDDING_MODEL: PriceList.simple(input="0.02"),
}
# Models that the demo upstream had in 0.2.0.
_FORMER_IMAGE_MODEL = "demo-image"
_FORMER_MODELS = (_FORMER_IMAGE_MODEL, "demo-speech", "demo-transcribe")


class Command(BaseCommand):
    """Creates the objects that are missing. Can be run at every start, because existing objects are left unchanged."""

    help = "Prepare a demo team with a key, an administrator and an upstream."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--demo-upstream", default="", help="address of the demo upstream, up to and including /v1")
        parser.add_argument("--model-file-url", default="", help="address of a server started with a model file")
        parser.add_argument("--model-file-name", default="", help="name of its model")
        parser.add_argument("--model-file-key", default="", help="API key of this server")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        # A configured upstream gets every model name. Only without one are the demo upstream's own models available.
        if settings.UPSTREAM_BASE_URL:
            services.add_upstream(
                name="default",
                base_url=settings.UPSTREAM_BASE_URL,
                api_key=settings.UPSTREAM_API_KEY,
                models=["*"],
                is_default=True,
            )
            Model.objects.filter(upstream__name="demo").update(enabled=False)
        elif options["demo_upstream"]:
            services.add_upstream(name="demo", base_url=options["demo_upstream"], models=[*_DEMO_PRICES])
            _set_demo_prices()
            Model.objects.filter(upstream__name="demo").update(enabled=~Q(name__in=_FORMER_MODELS))
            Upstream.objects.filter(name="default").update(is_default=False)
        _route_model_file(options["model_file_url"], name=options["model_file_name"], key=options["model_file_key"])
        password = None
        # The password is not stored in plain text, so it is only known if the account was created just now.
        if not User.objects.filter(is_superuser=True).exists():
            password = secrets.token_urlsafe(12)
            User.objects.create_superuser(_ADMIN, password=password)
        key = _ensure_key(settings.STATE_DIR / "demo-key")
        uses_demo = bool(options["demo_upstream"]) and not settings.UPSTREAM_BASE_URL
        _set_demo_model("embedding_model", _EMBEDDING_MODEL, used=uses_demo and not settings.EMBEDDING_MODEL)
        _set_demo_model("image_model", _FORMER_IMAGE_MODEL, used=False)
        shown = {
            "team": _TEAM,
            "key": key,
            "admin_user": _ADMIN,
            "admin_password": password,
            "upstreams": _upstreams(),
        }
        self.stdout.write(json.dumps(shown) if options["json"] else key)


def _set_demo_prices() -> None:
    # Models that were created by an earlier version get prices too. Prices that an operator has set stay.
    for model in Model.objects.filter(upstream__name="demo", name__in=_DEMO_PRICES, price_entries=None):
        services.set_prices(model, _DEMO_PRICES[model.name].entries)


def _route_model_file(url: str, *, name: str, key: str) -> None:
    # Models that are not in the file have no server that would answer.
    Model.objects.filter(upstream__name=_MODEL_FILE).exclude(name=name).update(enabled=False)
    if url:
        model = Model.objects.filter(upstream__name=_MODEL_FILE, name=name)
        # An existing model keeps the capabilities that an operator has chosen.
        capabilities = {} if model.exists() else _LLAMA_CAPABILITIES
        services.add_upstream(name=_MODEL_FILE, base_url=url, api_key=key, models=[name], capabilities=capabilities)
        model.update(enabled=True)


def _upstreams() -> list[dict[str, Any]]:
    models = Prefetch("models", queryset=Model.objects.filter(enabled=True))
    return [
        {
            "name": upstream.name,
            "base_url": upstream.base_url,
            "models": [model.name for model in upstream.models.all()],
        }
        for upstream in Upstream.objects.prefetch_related(models).order_by("created_at")
    ]


def _set_demo_model(field: str, model: str, *, used: bool) -> None:
    # Only replaces the value that this command itself set before: a choice made in the admin stays.
    before, after = ("", model) if used else (model, "")
    with scope.every_team():
        Team.objects.filter(name=_TEAM, **{field: before}).update(**{field: after})


def _ensure_key(path: Path) -> str:
    """Return the demo team's key from its file, or a new one if that key is missing or revoked."""
    if path.exists():
        known = path.read_text().strip()
        with scope.every_team():
            if ApiKey.objects.filter(digest=keyed_digest(known), revoked_at=None).exists():
                return known
    new = services.create_key(team=services.ensure_team(name=_TEAM), spec=services.KeySpec(name="demo"))
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file is private before it contains the key.
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(new.secret + "\n")
    return new.secret
