"""URLs of vector stores, below /v1/."""

from django.urls import path

from kernel.asgi import by_method
from responses.api import vector_stores as views

urlpatterns = [
    path("vector_stores", views.VectorStoreListView.as_view()),
    path("vector_stores/<str:store_id>", views.VectorStoreView.as_view()),
    # The only asynchronous view here: it waits for the embedding of the query.
    path("vector_stores/<str:store_id>/search", by_method(post=views.SearchVectorStoreView.as_view())),
    path("vector_stores/<str:store_id>/files", views.VectorStoreFilesView.as_view()),
    path("vector_stores/<str:store_id>/files/<str:file_id>", views.VectorStoreFileView.as_view()),
    path("vector_stores/<str:store_id>/files/<str:file_id>/content", views.VectorStoreFileContentView.as_view()),
    path("vector_stores/<str:store_id>/file_batches", views.VectorStoreBatchesView.as_view()),
    path("vector_stores/<str:store_id>/file_batches/<str:batch_id>", views.VectorStoreBatchView.as_view()),
    path("vector_stores/<str:store_id>/file_batches/<str:batch_id>/cancel", views.CancelVectorStoreBatchView.as_view()),
    path("vector_stores/<str:store_id>/file_batches/<str:batch_id>/files", views.VectorStoreBatchFilesView.as_view()),
]
