"""A fork finds every connection at rest, and the child begins with none.

SQLite keeps, per process, a note of which locks it holds on a file. In a child that note is a lie: locks
are not inherited, so a connection that is opened beside an inherited one would believe itself protected
by locks that only the parent has. The inherited ones have to go. Closing them is safe only while
no transaction is under way, as rolling one back would write into the memory that the parent shares; hence
the locks that are taken before each fork. It takes none of the parent's locks away, since locks belong to the
process that took them, and with checkpoints off it writes nothing.
"""

import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

from dibs.backends.sqlite.site import Site
from dibs.errors import BackendUnavailable

PATIENCE = 2.0
"""How long a fork waits for the transactions of other threads to end, in seconds."""


class Forkable(Protocol):
    """A connection, as far as a fork is concerned."""

    site: Site
    lock: threading.Lock

    @property
    def at_rest(self) -> bool:
        """No transaction is under way."""

    def close_in_child(self) -> None:
        """Let go of what was inherited."""

    def leak(self) -> None:
        """Forget what was inherited, and see to it that nothing ever closes it."""


_connections: WeakSet[Forkable] = WeakSet()
_held: list[Forkable] = []
_torn: set[str] = set()


def watch(connection: Forkable) -> None:
    """Have a connection at rest during forks, as long as it lives."""
    _connections.add(connection)


def refuse_if_torn(site: Site) -> None:
    """Raise `BackendUnavailable` where this process can't open a file, because of how it was forked."""
    if site.path in _torn:
        raise BackendUnavailable(
            f"this process was forked amid a transaction on {site.path}, and SQLite can't be used "
            "safely on it here: start it by spawn, or exec a program after the fork"
        )


def _before() -> None:
    end = time.monotonic() + PATIENCE
    _held.extend(
        connection
        for connection in list(_connections)
        if connection.lock.acquire(timeout=max(end - time.monotonic(), 0))
    )


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    for connection in list(_connections):
        if connection in _held and connection.at_rest:
            connection.close_in_child()
        else:
            connection.leak()
            _torn.add(connection.site.path)
        connection.lock = threading.Lock()
    _held.clear()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
