"""The embedded servers of `up`. Each runs under the supervisor and yields the URLs that the platform uses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from launcher import database, ports, postgres, valkey
from launcher.address import LOOPBACK
from launcher.database import DatabaseRole
from launcher.home import ServerHome
from launcher.report import Report
from launcher.supervisor import Stage, Supervisor
from launcher.valkey import Valkey

# Below the range of outgoing connections, so that none of them can occupy the port.
POSTGRES_PORTS, VALKEY_PORTS = 20000, 23000
DATABASE = "platform"
RECOVERY_SECONDS = 120.0  # after a crash of the machine, a long log may have to be replayed


@dataclass(frozen=True, kw_only=True)
class EmbeddedServers:
    """Starts PostgreSQL and Valkey with the passwords in ``secrets``, logging below ``logs``."""

    home: ServerHome
    logs: Path
    supervisor: Supervisor
    report: Report
    secrets: Mapping[str, str] = field(repr=False)

    def start_postgres(self) -> dict[str, str]:
        """Start PostgreSQL and return DATABASE_URL and DATABASE_OWNER_URL."""
        cluster = postgres.open_cluster(
            home=self.home, port=self._port(POSTGRES_PORTS), password=self.secrets["POSTGRES_SUPERUSER_PASSWORD"]
        )
        self.supervisor.start(
            postgres.command(cluster=cluster, settings=postgres.DURABLE, log=self.logs / "postgres.log"),
            stage=Stage.SERVERS,
            before=partial(postgres.clear_stale, data=cluster.data),
        )
        ready = partial(database.is_ready, admin=cluster.admin)
        self.supervisor.wait_for(ready, seconds=RECOVERY_SECONDS, what="PostgreSQL")
        owner = DatabaseRole(name="platform_owner", password=self.secrets["POSTGRES_OWNER_PASSWORD"])
        app = DatabaseRole(name="platform_app", password=self.secrets["POSTGRES_APP_PASSWORD"])
        database.prepare(admin=cluster.admin, database=DATABASE, owner=owner, app=app)
        self.report.step(f"PostgreSQL {cluster.programs.major} on {LOOPBACK}:{cluster.port}")
        url = partial(DatabaseRole.url, host=LOOPBACK, port=cluster.port, database=DATABASE)
        return {"DATABASE_URL": url(app), "DATABASE_OWNER_URL": url(owner)}

    def start_valkey(self) -> dict[str, str]:
        """Start Valkey and return REDIS_URL."""
        server = Valkey(
            program=valkey.find_program(home=self.home),
            home=self.home,
            port=self._port(VALKEY_PORTS),
            password=self.secrets["VALKEY_PASSWORD"],
        )
        self.supervisor.start(valkey.command(valkey=server, log=self.logs / "valkey.log"), stage=Stage.SERVERS)
        self.supervisor.wait_for(partial(valkey.is_ready, valkey=server), seconds=RECOVERY_SECONDS, what="Valkey")
        self.report.step(f"Valkey on {LOOPBACK}:{server.port}")
        return {"REDIS_URL": server.url}

    def _port(self, base: int) -> int:
        return ports.prefer(host=LOOPBACK, port=ports.usual(base=base, key=str(self.logs)))
