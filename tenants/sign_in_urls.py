"""URLs for signing in and managing credentials. Pages of allauth that require e-mail are left out."""

from allauth.account import views
from allauth.socialaccount import views as provider_views
from django.urls import include, path

from tenants.invitations.page import accept_invitation

urlpatterns = [
    path("login/", views.login, name="account_login"),
    path("logout/", views.logout, name="account_logout"),
    # This page only says that sign-up is closed. It is needed because allauth's templates and views link to it.
    path("invitations/<str:token>/", accept_invitation, name="account_invitation"),
    path("signup/", views.signup, name="account_signup"),
    path("inactive/", views.account_inactive, name="account_inactive"),
    path("reauthenticate/", views.reauthenticate, name="account_reauthenticate"),
    path("password/change/", views.password_change, name="account_change_password"),
    path("password/set/", views.password_set, name="account_set_password"),
    path("2fa/", include("allauth.mfa.urls")),
    path("sessions/", include("allauth.usersessions.urls")),
    path("providers/", provider_views.connections, name="socialaccount_connections"),
    path("providers/cancelled/", provider_views.login_cancelled, name="socialaccount_login_cancelled"),
    path("providers/signup/", provider_views.signup, name="socialaccount_signup"),
    path("providers/error/", provider_views.login_error, name="socialaccount_login_error"),
    path("", include("allauth.socialaccount.providers.openid_connect.urls")),
]
