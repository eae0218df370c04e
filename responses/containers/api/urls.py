"""URLs of containers, below /v1/."""

from django.urls import path

from kernel.asgi import by_method
from responses.containers.api import views

urlpatterns = [
    path("containers", by_method(get=views.ListContainers.as_view(), post=views.create_container)),
    path("containers/<str:container_id>", by_method(get=views.retrieve_container, delete=views.delete_container)),
    path(
        "containers/<str:container_id>/files",
        by_method(get=views.ListContainerFiles.as_view(), post=views.create_file),
    ),
    path(
        "containers/<str:container_id>/files/<str:file_id>",
        by_method(get=views.retrieve_file, delete=views.delete_file),
    ),
    path("containers/<str:container_id>/files/<str:file_id>/content", by_method(get=views.file_content)),
]
