"""The page behind the link to unsubscribe. It needs no sign-in: the token in the URL is the permission."""

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from deliveries.notifications.recipients import set_choice, unsign
from tenants import scope
from tenants.models import Team


# Without a CSRF token: mail programs post here on their own (RFC 8058).
@csrf_exempt
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def unsubscribe(request: HttpRequest, token: str) -> HttpResponse:
    """Ask for confirmation, or unsubscribe on POST. Programs that scan mails open links, so a GET changes nothing."""
    subscription = unsign(token)
    if subscription is None:
        raise Http404
    with scope.team(subscription.team_id):
        team = Team.objects.filter(pk=subscription.team_id).first()
    if team is None or not User.objects.filter(pk=subscription.user_id).exists():
        raise Http404
    if request.method == "POST":
        set_choice(user_id=subscription.user_id, team_id=team.pk, kinds=[subscription.kind], by_mail=False)
    context = {"team": team, "kind": subscription.kind.label, "is_done": request.method == "POST"}
    return render(request, "unsubscribe.html", context)
