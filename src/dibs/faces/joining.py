"""A transaction of the user's own as a way to a store, where the store can join one.

Such a store has `within(connection)`, which gives a backend that applies there, and whose `blocking`
tells of which world the connection is. It raises `TypeError` for what is no connection of its kind.
"""

from typing import Any

from dibs.errors import NotConfigured
from dibs.primitives.joining import Way
from dibs.runtime.port import Runtime


def by_task(rt: Runtime, connection: Any) -> Way:
    """By an async connection, for the event loop's tasks."""
    return _way(
        rt,
        connection,
        blocking=False,
        else_say="this blocking connection would stop the event loop while it waits: give an async "
        "one, or acquire with dibs.sync in a thread",
    )


def by_thread(rt: Runtime, connection: Any) -> Way:
    """By a blocking connection, for threads."""
    return _way(
        rt,
        connection,
        blocking=True,
        else_say="this async connection is its event loop's: give a blocking one, or acquire with "
        "dibs (without .sync) in that loop",
    )


def _way(rt: Runtime, connection: Any, *, blocking: bool, else_say: str) -> Way:
    keeper: Any = rt.keeper
    store = keeper.store
    join = getattr(store, "within", None)
    if join is None:
        raise NotConfigured(
            f"{store.url} can't be part of a transaction: within= is for leases in the database that "
            "the transaction is in, and of the stores here postgresql:// can do that"
        )
    way = join(connection)
    if way.blocking is not blocking:
        raise TypeError(f"within= is a {type(connection).__qualname__}: {else_say}")
    joined: Way = way
    return joined
