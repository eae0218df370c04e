"""Sign-in by password with a second factor, passkey or OpenID Connect provider, on top of allauth.

Users cannot sign up themselves: administrators create accounts, or the provider if the operator allows it. All sign-in
events are recorded in the audit log.
"""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.signals import password_changed, user_logged_in
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_added, authenticator_removed, authenticator_reset
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_out, user_login_failed
from django.core.exceptions import PermissionDenied
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode
from typing_extensions import override

from core.crypto import decrypt, encrypt
from tenants import invitations, scope
from tenants.audit import audit
from tenants.models import Invite

_MOST_NAME = 100


def redirect_to_login(request: HttpRequest) -> HttpResponse:
    """Redirect `/admin/login/` to the sign-in page. Raises `PermissionDenied` for signed-in users without access."""
    if request.user.is_authenticated:
        if not admin.site.has_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("admin:index"))
    onward = request.GET.get("next") or reverse("admin:index")
    return HttpResponseRedirect(f"{reverse('account_login')}?{urlencode({'next': onward})}")


def admin_context(request: HttpRequest) -> dict[str, Any]:
    """Context processor that provides the admin's variables to allauth's pages, which extend the admin's templates."""
    # Only allauth's pages need this: the admin's own views pass the same context themselves.
    if not request.path.startswith("/account/"):
        return {}
    return {**admin.site.each_context(request), "has_provider": bool(settings.OIDC_ISSUER)}


class AccountAdapter(DefaultAccountAdapter):
    """Disables sign-up: accounts are created by administrators."""

    @override
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


class SecondFactorAdapter(DefaultMFAAdapter):
    """Stores the secrets of authenticator apps encrypted."""

    @override
    def encrypt(self, text: str) -> str:
        return encrypt(text)

    @override
    def decrypt(self, encrypted_text: str) -> str:
        return decrypt(encrypted_text)


class ProviderAdapter(DefaultSocialAccountAdapter):
    """Signs in users of the OpenID Connect provider, matched by verified e-mail address.

    Unknown users get an account only if OIDC_SIGNUP is set or if they are invited.
    """

    @override
    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        allowed: bool = settings.OIDC_SIGNUP
        return allowed or self._invite_of(sociallogin) is not None

    @staticmethod
    def _invite_of(sociallogin: SocialLogin) -> Invite | None:
        # An unverified address may belong to another person.
        return invitations.find_pending(address.email for address in sociallogin.email_addresses if address.verified)

    @override
    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        invite = self._invite_of(sociallogin)
        user: User = super().save_user(request, sociallogin, form)
        # The user may sign in to the admin, but sees nothing until an administrator or lead assigns a role.
        user.is_staff = True
        user.save(update_fields=["is_staff"])
        _note("user.created", user, after={"by": "the OpenID Connect provider", "email": user.email})
        if invite is not None:
            invitations.join(invite, user)
        return user


# -- the audit log -----------------------------------------------------------------------------------------------------


def _note(action: str, user: Any, **details: Any) -> None:
    name = user.get_username()
    with scope.every_team():
        audit(team_id=None, actor=f"user:{name}", action=action, target=f"user:{name}", **details)


@receiver(user_logged_in)
def _note_login(user: User, **_: Any) -> None:
    _note("session.started", user)


@receiver(user_logged_out)
def _note_logout(user: User | None, **_: Any) -> None:
    if user is not None:
        _note("session.ended", user)


@receiver(user_login_failed)
def _note_refusal(credentials: dict[str, Any], **_: Any) -> None:
    # The submitted text may have any length.
    name = str(credentials.get("username") or credentials.get("email") or "")[:_MOST_NAME]
    with scope.every_team():
        audit(team_id=None, actor="system", action="session.refused", target=f"user:{name}")


@receiver(password_changed)
def _note_password(user: User, **_: Any) -> None:
    _note("user.password_changed", user)


@receiver(authenticator_added)
def _note_factor(user: User, authenticator: Authenticator, **_: Any) -> None:
    _note("second_factor.added", user, after={"type": authenticator.type})


@receiver(authenticator_reset)
def _note_factor_renewed(user: User, authenticator: Authenticator, **_: Any) -> None:
    _note("second_factor.renewed", user, after={"type": authenticator.type})


@receiver(authenticator_removed)
def _note_factor_removed(user: User, authenticator: Authenticator, **_: Any) -> None:
    _note("second_factor.removed", user, before={"type": authenticator.type})
