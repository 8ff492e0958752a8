"""New connections, for event loops and for threads."""

import asyncio
import secrets
from math import ceil, inf
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dibs.stores.postgres.loop_wire import LoopWire
from dibs.stores.postgres.session import PATIENCE, Connect, Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.statements import Statement
from dibs.stores.postgres.thread_wire import ThreadWire
from dibs.stores.postgres.trouble import refused
from dibs.stores.postgres.wire import Wire


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


async def connect_thread(site: Site, within: float = inf) -> ThreadWire:
    """A connection for one thread at a time, made within so many seconds; never suspends."""
    conninfo = site.address.conninfo
    if within < int(conninfo_to_dict(conninfo).get("connect_timeout") or 0):
        conninfo = make_conninfo(conninfo, connect_timeout=max(ceil(within), 1))
    try:
        opened = _ThreadConnection.connect(conninfo, autocommit=True)
    except (psycopg.Error, OSError) as error:
        raise refused(error, site.place) from error
    return ThreadWire(opened.pgconn)


TEST = "dibs test"
"""The payload of a push that is none."""

SOON = 1.0
"""A test push that has not come by then will not, in seconds."""

_NOTIFY = Statement("dibs_notify", "SELECT pg_notify(%s, %s)")


def new_inbox() -> str:
    """A channel that nobody can guess: whoever knows its name could ring there."""
    return f"dibs_{secrets.token_hex(16)}"


async def listen[W: Wire](wire: W, inbox: str, site: Site, connect: Connect[W]) -> bool:
    """Listen, and tell whether pushes come through.

    A transaction pooler lends us a server connection for one statement at a time: it takes the
    LISTEN, and what the server pushes later is lost on the way. So behind a pooler of any kind
    another connection sends a test, while this one is idle.
    """
    await wire.run(f'LISTEN "{inbox}"', PATIENCE)
    if not site.is_pooled:
        return True
    other = Session(site, connect)
    try:
        await other.ask(_NOTIFY, [inbox, TEST])
    finally:
        other.cut()
    if TEST in await wire.next_pushes(SOON):
        return True
    await wire.run(f'UNLISTEN "{inbox}"', PATIENCE)
    return False
