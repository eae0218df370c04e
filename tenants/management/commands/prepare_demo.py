"""`manage.py prepare_demo`: what a first start needs: a team with a key, an administrator, an upstream."""

import json
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from typing_extensions import override

from kernel.crypto import keyed_digest
from tenants import scope, services
from tenants.models import ApiKey, Model, Team, Upstream

_TEAM = "demo"
_ADMIN = "admin"
_EMBEDDER = "demo-embedding"
_PAINTER = "demo-image"
_DEMO_MODELS = ("demo", "demo-reasoning", _EMBEDDER, _PAINTER)


class Command(BaseCommand):
    """Safe to run at every start: what is there already stays as it is."""

    help = "Prepare a demo team with a key, an administrator and an upstream."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--demo-upstream", default="", help="address of the demo upstream, up to and including /v1")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        _route(options["demo_upstream"])
        password = _ensure_admin()
        key = _ensure_key(settings.STATE_DIR / "demo-key")
        used = bool(options["demo_upstream"]) and not settings.UPSTREAM_BASE_URL
        _use_demo("embedding_model", _EMBEDDER, used=used and not settings.EMBEDDING_MODEL)
        _use_demo("image_model", _PAINTER, used=used and not settings.IMAGE_MODEL)
        shown = {"team": _TEAM, "key": key, "admin_user": _ADMIN, "admin_password": password}
        self.stdout.write(json.dumps(shown) if options["json"] else key)


def _route(demo_upstream: str) -> None:
    """The configured upstream answers for every name; without one the demo's models answer for themselves."""
    if settings.UPSTREAM_BASE_URL:
        services.add_upstream(
            name="default",
            base_url=settings.UPSTREAM_BASE_URL,
            api_key=settings.UPSTREAM_API_KEY,
            models=["*"],
            is_default=True,
        )
        Model.objects.filter(upstream__name="demo").update(enabled=False)
    elif demo_upstream:
        services.add_upstream(name="demo", base_url=demo_upstream, models=_DEMO_MODELS)
        Model.objects.filter(upstream__name="demo").update(enabled=True)
        Upstream.objects.filter(name="default").update(is_default=False)


def _use_demo(field: str, model: str, *, used: bool) -> None:
    """The demo team's stores are embedded, and its images made, by the demo, unless somebody has said otherwise."""
    before, after = ("", model) if used else (model, "")
    with scope.every_team():
        Team.objects.filter(name=_TEAM, **{field: before}).update(**{field: after})


def _ensure_admin() -> str | None:
    """Make the administrator; returns the password only when it was just made."""
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser(_ADMIN, password=password)
    return password


def _ensure_key(path: Path) -> str:
    """The demo team's key out of its file, or a new one when it does not work any more."""
    if path.exists():
        known = path.read_text().strip()
        with scope.every_team():
            if ApiKey.objects.filter(digest=keyed_digest(known), revoked_at=None).exists():
                return known
    made = services.create_key(team=services.ensure_team(name=_TEAM), name="demo")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(made.secret + "\n")
    return made.secret
