"""The URLs of vector stores, below /v1/."""

from django.urls import path

from kernel.asgi import by_method
from responses.api import vector_stores as views

urlpatterns = [
    path("vector_stores", views.VectorStores.as_view()),
    path("vector_stores/<str:store_id>", views.OneVectorStore.as_view()),
    path("vector_stores/<str:store_id>/search", by_method(post=views.SearchVectorStore.as_view())),
    path("vector_stores/<str:store_id>/files", views.StoreFiles.as_view()),
    path("vector_stores/<str:store_id>/files/<str:file_id>", views.OneStoreFile.as_view()),
    path("vector_stores/<str:store_id>/files/<str:file_id>/content", views.StoreFileContent.as_view()),
    path("vector_stores/<str:store_id>/file_batches", views.StoreBatches.as_view()),
    path("vector_stores/<str:store_id>/file_batches/<str:batch_id>", views.OneStoreBatch.as_view()),
    path("vector_stores/<str:store_id>/file_batches/<str:batch_id>/cancel", views.CancelStoreBatch.as_view()),
    path("vector_stores/<str:store_id>/file_batches/<str:batch_id>/files", views.StoreBatchFiles.as_view()),
]
