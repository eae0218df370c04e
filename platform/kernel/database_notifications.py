"""Notices of PostgreSQL's: a wake-up that arrives when, and only when, the transaction that sent it is committed.

They are a convenience: whoever waits for one also looks by itself from time to time.
"""

import asyncio
import logging
from collections.abc import Callable

import psycopg
from django.conf import settings
from psycopg import sql

logger = logging.getLogger(__name__)
_RECONNECT_SECONDS = 2.0


async def listen(channel: str, ring: Callable[[], None]) -> None:
    """Call `ring` for each notice, until cancelled; the connection is its own, and made anew where it breaks."""
    while True:
        try:
            async with await _connect() as connection:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                ring()
                async for _ in connection.notifies():
                    ring()
        except (psycopg.Error, OSError):
            logger.warning("notices of the database are not heard for a while", extra={"channel": channel})
        await asyncio.sleep(_RECONNECT_SECONDS)


async def _connect() -> "psycopg.AsyncConnection[tuple[object, ...]]":
    database = settings.DATABASES["default"]
    return await psycopg.AsyncConnection.connect(
        dbname=database["NAME"],
        user=database["USER"],
        password=database["PASSWORD"],
        host=database["HOST"],
        port=database["PORT"],
        connect_timeout=5,
        application_name="platform-notices",
        autocommit=True,
    )
