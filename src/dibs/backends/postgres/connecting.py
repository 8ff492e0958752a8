"""New connections, for event loops and for threads."""

import asyncio
from typing import Any

import psycopg

from dibs.backends.postgres.loop_wire import LoopWire
from dibs.backends.postgres.site import Site
from dibs.backends.postgres.thread_wire import ThreadWire
from dibs.backends.postgres.trouble import refused


class _LoopConnection(psycopg.AsyncConnection[Any]):
    """Only opens: from then on its `pgconn` is ours."""

    def __del__(self, _warn: Any = None) -> None:
        """Says nothing of having been left open."""


class _ThreadConnection(psycopg.Connection[Any]):
    """Only opens: from then on its `pgconn` is ours."""

    def __del__(self, _warn: Any = None) -> None:
        """Says nothing of having been left open."""


async def connect_loop(site: Site) -> LoopWire:
    """A connection for the running loop."""
    try:
        opened = await _LoopConnection.connect(site.address.conninfo, autocommit=True)
    except (psycopg.Error, OSError) as error:
        raise refused(error, site.place) from error
    return LoopWire(opened.pgconn, asyncio.get_running_loop())


async def connect_thread(site: Site) -> ThreadWire:
    """A connection for one thread at a time; never suspends."""
    try:
        opened = _ThreadConnection.connect(site.address.conninfo, autocommit=True)
    except (psycopg.Error, OSError) as error:
        raise refused(error, site.place) from error
    return ThreadWire(opened.pgconn)
