"""The URLs of the API, below /v1/."""

from django.urls import path

from kernel.asgi import by_method
from responses.api import batches, chat_completions, conversations, images, passthrough, vector_urls, views, webhooks

urlpatterns = [
    path("responses", by_method(get=views.ListResponses.as_view(), post=views.CreateResponse.as_view())),
    path("responses/input_tokens", by_method(post=passthrough.CountInputTokens.as_view())),
    path("responses/compact", by_method(post=passthrough.CompactConversation.as_view())),
    path("responses/<str:response_id>", views.OneResponse.as_view()),
    path("responses/<str:response_id>/cancel", views.CancelResponse.as_view()),
    path("responses/<str:response_id>/input_items", views.InputItems.as_view()),
    path(
        "chat/completions",
        by_method(
            get=chat_completions.ListChatCompletions.as_view(), post=chat_completions.CreateChatCompletion.as_view()
        ),
    ),
    path("chat/completions/<str:completion_id>", chat_completions.OneChatCompletion.as_view()),
    path("chat/completions/<str:completion_id>/messages", chat_completions.ChatMessages.as_view()),
    path("conversations/<str:conversation_id>/cancel", conversations.CancelConversation.as_view()),
    path("batches", batches.Batches.as_view()),
    path("batches/<str:batch_id>", batches.OneBatch.as_view()),
    path("batches/<str:batch_id>/cancel", batches.CancelBatch.as_view()),
    path("embeddings", by_method(post=passthrough.CreateEmbedding.as_view())),
    path("moderations", by_method(post=passthrough.CreateModeration.as_view())),
    path("images/generations", by_method(post=images.GenerateImages.as_view())),
    path("images/edits", by_method(post=images.EditImages.as_view())),
    path("webhook_endpoints", webhooks.WebhookEndpoints.as_view()),
    path("webhook_endpoints/<str:endpoint_id>", webhooks.OneWebhookEndpoint.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/rotate_secret", webhooks.RotateWebhookSecret.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/test", by_method(post=webhooks.SendWebhookTest.as_view())),
    path("webhook_event_types", webhooks.WebhookEventTypes.as_view()),
    *vector_urls.urlpatterns,
    path("models", views.ListModels.as_view()),
    path("models/<path:model>", views.OneModel.as_view()),
]
