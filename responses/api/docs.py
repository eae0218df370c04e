"""`/openapi.json` and `/docs`: the API described for machines and for people. Both are public, like any manual."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from responses.api.openapi import document


def openapi(_: HttpRequest) -> HttpResponse:
    """The OpenAPI 3.1 document."""
    return JsonResponse(document())


def page(request: HttpRequest) -> HttpResponse:
    """The manual, rendered by Redoc from files of our own."""
    return render(request, "docs.html")
