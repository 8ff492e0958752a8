"""Ids of leases under which something may yet be granted after they were given up.

Of an Acquire that had no answer, or that was sent twice, a copy may still be on its way to the store. Should
it come after the release, it is granted to nobody, for a whole ttl. So a release of such an id has the store
remember it.
"""

from dataclasses import replace

from dibs.core.timing import burial
from dibs.model import Acquire, Command, Release
from dibs.primitives.ids import new_id

MOST = 10_000
"""Ids that are remembered, of each sort."""


class Doubts:
    """Those of one server. It knows of its own copies only."""

    __slots__ = ("_bury", "_made", "ids")

    def __init__(self, call_timeout: float) -> None:
        self._bury = burial(call_timeout)
        self._made: dict[str, None] = {}
        """Ids that this server made and has not released. The latest comes last."""
        self.ids: dict[str, None] = {}
        """The latest comes last. As a rule there are none, and then nothing needs to be `heeded`."""

    def about(self, command: Command) -> None:
        """A copy of it may still be on its way to the store."""
        if type(command) is Acquire:
            self.add(command.id)

    def add(self, lease_id: str) -> None:
        """A copy of an Acquire under this id may still be on its way."""
        _remember(self.ids, lease_id)

    def new_id(self) -> str:
        """A lease id for a caller who brought none. Only this server ever sends an Acquire with it."""
        lease_id = new_id()
        _remember(self._made, lease_id)
        return lease_id

    def was_made(self, lease_id: str) -> bool:
        """Whether this server made it and its release is the first that it sees."""
        if lease_id not in self._made:
            return False
        del self._made[lease_id]
        return True

    def heeded(self, command: Command) -> Command:
        """The command as it is to be sent: a release of such an id has the store remember it."""
        if type(command) is not Release or command.id not in self.ids:
            return command
        return self.buried(command)

    def burial_of(self, lease_id: str) -> float:
        """For how long the store is to remember such an id; 0 for one that nobody doubts."""
        return self._bury if lease_id in self.ids else 0.0

    def buried(self, command: Release) -> Release:
        """Have the store remember its id for as long as a late copy may be on its way."""
        return replace(command, bury=max(command.bury, self._bury))


def _remember(ids: dict[str, None], lease_id: str) -> None:
    ids.pop(lease_id, None)  # it is the latest again
    ids[lease_id] = None
    if len(ids) > MOST:
        del ids[next(iter(ids))]
