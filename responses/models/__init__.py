"""The database models of responses. Django finds models only through this package, so all are imported here."""

from responses.models.batches import Batch, BatchLine, BatchStatus, LineState
from responses.models.responses import (
    RUNNING,
    TERMINAL,
    UNSUCCESSFUL,
    Approval,
    ApprovalState,
    ChatCompletion,
    CommitMark,
    ConversationLock,
    EventBatch,
    Mode,
    PromptTemplate,
    PromptVersion,
    Response,
    Status,
    ToolCall,
    Turn,
)
from responses.models.rollups import CallHour, ResponseHour, RollupMark, ToolHour, UnrolledRow
from responses.models.search import SearchMark, SearchText
from responses.models.vector_stores import (
    VectorChunk,
    VectorEmbedding,
    VectorStore,
    VectorStoreBatch,
    VectorStoreFile,
)
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint

__all__ = [
    "RUNNING",
    "TERMINAL",
    "UNSUCCESSFUL",
    "Approval",
    "ApprovalState",
    "Batch",
    "BatchLine",
    "BatchStatus",
    "CallHour",
    "ChatCompletion",
    "CommitMark",
    "ConversationLock",
    "EventBatch",
    "LineState",
    "Mode",
    "PromptTemplate",
    "PromptVersion",
    "Response",
    "ResponseHour",
    "RollupMark",
    "SearchMark",
    "SearchText",
    "Status",
    "ToolCall",
    "ToolHour",
    "Turn",
    "UnrolledRow",
    "VectorChunk",
    "VectorEmbedding",
    "VectorStore",
    "VectorStoreBatch",
    "VectorStoreFile",
    "WebhookDelivery",
    "WebhookEndpoint",
]
