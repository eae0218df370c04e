"""The page that the link of an invitation opens. It needs no sign-in: the token in the URL is the permission."""

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
    """Form with the name and the password of the new account."""

    first_name = forms.CharField(max_length=150, required=False)
    last_name = forms.CharField(max_length=150, required=False)

    class Meta:
        model = User
        fields = ["username", "first_name", "last_name"]

    def clean_username(self) -> str:
        """Reject a username that exists, ignoring case, and one that is the e-mail address of another person.

        Leads add people to teams by username or e-mail address. They could add the wrong person if a user had the
        address of another person as username.
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
    """Show the form for the account; on POST, create the account. Raises 404 if the invitation is not pending."""
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
