"""The page behind the link of an invitation. It needs no sign-in: the token in the URL is the permission."""

from django import forms
from django.contrib import messages
from django.contrib.auth.forms import BaseUserCreationForm
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from tenants.invitations import services


class AccountForm(BaseUserCreationForm[User]):
    """Name and password of the account."""

    first_name = forms.CharField(max_length=150, required=False)
    last_name = forms.CharField(max_length=150, required=False)

    class Meta:
        model = User
        fields = ["username", "first_name", "last_name"]

    def clean_username(self) -> str:
        """Refuse a username that exists in upper or lower case, and e-mail addresses other than the user's own.

        Leads add people by username or e-mail address, and could add a user whose name is the address of another.
        """
        username: str = self.cleaned_data["username"]
        if User.objects.filter(username__iexact=username).exists():
            raise forms.ValidationError("A user with that username already exists.")
        if "@" in username and username.casefold() != self.instance.email.casefold():
            raise forms.ValidationError("Only your own e-mail address may be your username.")
        return username


@never_cache
@sensitive_post_parameters("password1", "password2")
@require_http_methods(["GET", "HEAD", "POST"])
def accept_invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Show the form of the account; on POST, create it. 404 for a link that is wrong, used, deleted or expired."""
    invite = services.find_by_token(token)
    if invite is None:
        raise Http404
    initial, account = {"username": invite.email}, User(email=invite.email)
    form = AccountForm(request.POST or None, initial=initial, instance=account)
    if request.method == "POST" and form.is_valid():
        cleaned = form.cleaned_data
        try:
            services.accept(invite, values={**cleaned, "password": cleaned["password1"]})
        except services.NotPending as error:
            raise Http404 from error
        messages.success(request, "Your account is created. Log in to continue.")
        return HttpResponseRedirect(reverse("account_login"))
    return render(request, "account/invitation.html", {"form": form, "invite": invite})
