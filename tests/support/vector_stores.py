"""Vector stores: a team with an embedding model, uploads, and ingestion in this process."""

from dataclasses import dataclass
from typing import Any

from core.db.db_threads import in_db_thread
from core.work import worker_loop
from providers.clients import close_clients
from tenants import scope, services
from tenants.models import Team
from tests.support.api import Api, ok
from tests.support.waiting import eventually
from tools.vectors import ingestion

EMBEDDER = "demo-embedding-d0"
"""The demo embedding model under a name that no other test uses."""


def use_demo_embeddings(team: Team, *, url: str) -> None:
    """Configure the demo upstream as the embedding model of a team."""
    services.add_upstream(name="embedder of libraries", base_url=url, models=[EMBEDDER])
    with scope.team(team.pk):
        Team.objects.filter(pk=team.pk).update(embedding_model=EMBEDDER)


def read_waiting_files() -> None:
    """Ingest all waiting files in this process."""
    worker_loop.submit(_read()).result(60)


async def _read() -> None:
    try:
        ingesting = ingestion.Ingestion()
        while (claimed := await in_db_thread(ingestion.claim_file)) is not None:
            await ingesting.execute(claimed)
    finally:
        await close_clients()


@dataclass(frozen=True)
class StoreClient:
    """Client of one vector store."""

    api: Api
    id: str

    @property
    def path(self) -> str:
        """Path of the store below `/v1`."""
        return f"/vector_stores/{self.id}"

    def upload(self, name: str, content: str | bytes, purpose: str = "assistants") -> str:
        """A new file of the team's; returns its id."""
        return upload(self.api, name, content, purpose)

    def add(self, name: str, content: str | bytes, **settings: Any) -> str:
        """Upload, attach and ingest a file, and return its id."""
        file_id = self.upload(name, content)
        ok(self.api.post(f"{self.path}/files", {"file_id": file_id, **settings}))

        def is_read() -> bool:
            # A worker of another test may have claimed the file, or its embeddings may have failed for the moment.
            read_waiting_files()
            return bool(self.entry(file_id)["status"] != "in_progress")

        eventually(is_read)
        return file_id

    def entry(self, file_id: str) -> dict[str, Any]:
        """Return the vector store file object of a file."""
        return ok(self.api.get(f"{self.path}/files/{file_id}"))

    def search(self, query: str | list[str], **options: Any) -> list[dict[str, Any]]:
        """Search the store and return the results."""
        found: list[dict[str, Any]] = ok(self.api.post(f"{self.path}/search", {"query": query, **options}))["data"]
        return found


def upload(api: Api, name: str, content: str | bytes, purpose: str = "assistants") -> str:
    """A new file of the team's; returns its id."""
    raw = content.encode() if isinstance(content, str) else content
    answer = api.request("POST", "/files", data={"purpose": purpose}, files={"file": (name, raw)})
    return str(ok(answer)["id"])
