"""URLs of conversations, files and uploads, below /v1/."""

from django.urls import URLPattern, path

from conversations.api import conversations, files, uploads
from conversations.services import CheckItems
from kernel.asgi import by_method


def urlpatterns(*, check_items: CheckItems) -> list[URLPattern]:
    """Return the URLs. `check_items` refuses items that may not be added to a conversation."""
    return [
        path("conversations", conversations.Conversations.as_view(check_items=check_items)),
        path("conversations/<str:conversation_id>", conversations.OneConversation.as_view()),
        path("conversations/<str:conversation_id>/items", conversations.Items.as_view(check_items=check_items)),
        path("conversations/<str:conversation_id>/items/<str:item_id>", conversations.OneItem.as_view()),
        path("conversations/<str:conversation_id>/fork", conversations.Fork.as_view()),
        path("conversations/<str:conversation_id>/export", by_method(get=conversations.export_items)),
        path("files", by_method(get=files.ListFiles.as_view(), post=files.create_file)),
        path("files/<str:file_id>", files.OneFile.as_view()),
        path("files/<str:file_id>/content", by_method(get=files.file_content)),
        path("uploads", uploads.Uploads.as_view()),
        path("uploads/<str:upload_id>/parts", by_method(post=uploads.add_part)),
        path("uploads/<str:upload_id>/complete", by_method(post=uploads.complete_upload)),
        path("uploads/<str:upload_id>/cancel", uploads.Cancel.as_view()),
    ]
