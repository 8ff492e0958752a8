"""Which database a connection leads to, whatever it is called on the way there.

Host, port and name don't tell: a pooler, a socket, an alias or a second name of the same host lead to the
same database. The database itself does: by when its server was started, to the microsecond, and by the
number that it has there.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from dibs.backends.postgres.connecting import connect_loop, connect_thread
from dibs.backends.postgres.session import Session
from dibs.backends.postgres.site import Site
from dibs.backends.postgres.statements import Rows, Statement
from dibs.errors import NotConfigured

WHICH = Statement(
    "dibs_which",
    """
    SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text,
        d.oid::text, d.datname::text
    FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()
    """,
)

type Identity = tuple[str, str]
type Ask = Callable[[Statement], Awaitable[Rows]]

_sites: dict[str, Identity] = {}
"""By what they are connected to with. Another server may answer there by now, so a no is asked again."""

_connections: WeakKeyDictionary[Any, Identity] = WeakKeyDictionary()
"""Those of users that were found to lead where they should, and need not be asked again."""


async def check(connection: Any, ask: Ask, site: Site, *, blocking: bool) -> None:
    """Raise `NotConfigured` unless the connection, which `ask` asks, leads to the site's database.

    The first check of a site connects to it, and makes the schema if the role may.
    """
    known = _sites.get(site.address.conninfo)
    if known is not None and _connections.get(connection) == known:
        return
    [(started, number, name)] = await ask(WHICH)
    theirs = started, number
    if known != theirs and await _look(site, blocking=blocking) != theirs:
        raise NotConfigured(
            f"the connection given as within= leads to another database ({name}) than the one that "
            f"this client keeps its leases in ({site.place}): a lease can only be part of a transaction "
            "in its own database"
        )
    _connections[connection] = theirs


async def _look(site: Site, *, blocking: bool) -> Identity:
    """Ask the site's own database."""
    session: Session[Any] = Session(site, connect_thread if blocking else connect_loop)
    try:
        [(started, number, _)] = await session.ask(WHICH, ())
    finally:
        session.cut()
    found = _sites[site.address.conninfo] = (started, number)
    return found
