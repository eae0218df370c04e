"""URLs of conversations, files and uploads, below /v1/."""

from django.urls import path

from conversations.api import conversations, files, uploads
from kernel.asgi import by_method

urlpatterns = [
    path("conversations", conversations.Conversations.as_view()),
    path("conversations/<str:conversation_id>", conversations.OneConversation.as_view()),
    path("conversations/<str:conversation_id>/items", conversations.Items.as_view()),
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
