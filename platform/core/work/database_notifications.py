"""PostgreSQL's LISTEN: a notification arrives if, and only if, the transaction that sent it has been committed.

Notifications are lost while the connection is down, so listeners also poll the database.
"""

import asyncio
import logging
from collections.abc import Callable

import psycopg
from psycopg import sql

from core.db.database import database_conninfo

logger = logging.getLogger(__name__)
_RECONNECT_SECONDS = 2.0


async def listen(channel: str, notified: Callable[[], None]) -> None:
    """Call `notified` for each notification until cancelled; opens its own connection and reopens it when it breaks."""
    while True:
        try:
            # Not one of Django's connections: LISTEN occupies a connection for the lifetime of the process.
            async with await psycopg.AsyncConnection.connect(
                database_conninfo(), application_name="platform-notices", autocommit=True
            ) as connection:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                # Notifications sent before LISTEN took effect are lost: treat every new connection as one.
                notified()
                async for _ in connection.notifies():
                    notified()
        except (psycopg.Error, OSError):
            logger.warning("database notifications cannot be received", extra={"channel": channel})
        await asyncio.sleep(_RECONNECT_SECONDS)
