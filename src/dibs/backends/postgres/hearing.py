"""Listening to an inbox, and finding out whether what is pushed there gets through."""

import secrets

from dibs.backends.postgres.session import PATIENCE, Connect, Session
from dibs.backends.postgres.site import Site
from dibs.backends.postgres.statements import Statement
from dibs.backends.postgres.wire import Wire

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
