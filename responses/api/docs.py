"""`/openapi.json` and `/docs`: the API reference for machines and for people. Both need no key."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from responses.api.openapi import document


def openapi(_: HttpRequest) -> HttpResponse:
    """Respond with the OpenAPI 3.1 document."""
    return JsonResponse(document())


def page(request: HttpRequest) -> HttpResponse:
    """Respond with the reference, rendered by Redoc."""
    return render(request, "docs.html")
