"""URLs of the API, below /v1/."""

from django.urls import path

from kernel.asgi import by_method
from responses.api import batches, chat_completions, conversations, images, passthrough, vector_urls, views, webhooks

urlpatterns = [
    path("responses", by_method(get=views.ListResponsesView.as_view(), post=views.CreateResponseView.as_view())),
    # Before the pattern of response ids, which matches these names as well.
    path("responses/input_tokens", by_method(post=passthrough.CountInputTokensView.as_view())),
    path("responses/compact", by_method(post=passthrough.CompactConversationView.as_view())),
    path("responses/<str:response_id>", views.ResponseView.as_view()),
    path("responses/<str:response_id>/cancel", views.CancelResponseView.as_view()),
    path("responses/<str:response_id>/input_items", views.InputItemsView.as_view()),
    path(
        "chat/completions",
        by_method(
            get=chat_completions.ListChatCompletionsView.as_view(),
            post=chat_completions.CreateChatCompletionView.as_view(),
        ),
    ),
    path("chat/completions/<str:completion_id>", chat_completions.ChatCompletionView.as_view()),
    path("chat/completions/<str:completion_id>/messages", chat_completions.ChatMessagesView.as_view()),
    path("conversations/<str:conversation_id>/cancel", conversations.CancelConversationView.as_view()),
    path("batches", batches.BatchListView.as_view()),
    path("batches/<str:batch_id>", batches.BatchView.as_view()),
    path("batches/<str:batch_id>/cancel", batches.CancelBatchView.as_view()),
    path("embeddings", by_method(post=passthrough.CreateEmbeddingView.as_view())),
    path("moderations", by_method(post=passthrough.CreateModerationView.as_view())),
    path("images/generations", by_method(post=images.GenerateImagesView.as_view())),
    path("images/edits", by_method(post=images.EditImagesView.as_view())),
    path("webhook_endpoints", webhooks.WebhookEndpointListView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>", webhooks.WebhookEndpointView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/rotate_secret", webhooks.RotateWebhookSecretView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/test", by_method(post=webhooks.SendWebhookTestView.as_view())),
    path("webhook_event_types", webhooks.WebhookEventTypesView.as_view()),
    *vector_urls.urlpatterns,
    path("models", views.ListModelsView.as_view()),
    path("models/<path:model>", views.ModelView.as_view()),
]
