"""The URLs of files, below /v1/."""

from django.urls import path

from conversations.api import views
from kernel.asgi import by_method

urlpatterns = [
    path("files", by_method(get=views.ListFiles.as_view(), post=views.create_file)),
    path("files/<str:file_id>", views.OneFile.as_view()),
    path("files/<str:file_id>/content", by_method(get=views.file_content)),
]
