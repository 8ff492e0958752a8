"""Without datagrams: look whether the file has changed, and what became of those who queue.

The backend has no inbox then, so nobody can name it a lease that was granted. Instead it remembers
which ids it has put into a queue, and looks at their rows whenever somebody has written. Holders are
told of a revocation by their next renewal only.
"""

from collections.abc import Iterable, Sequence

from dibs.core.book import Entry, Hold, Place
from dibs.core.names import fingerprint
from dibs.core.proof import proof_of
from dibs.model import Acquire, Command, Queued, Renew, Reply, Wakeup
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.post import Post

PACE = 0.05
"""How often to look, in seconds."""


class Watch:
    """The ids of one backend that queue, and what there is to tell them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queued: dict[str, bytes] = {}
        self._heads: set[str] = set()
        self._version: object = None

    def note(self, commands: Iterable[Command], replies: Iterable[Reply]) -> None:
        """Remember who queues and forget who doesn't any more. Any thread."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Queued) and isinstance(command, Acquire | Renew):
                self._queued[command.id] = command.key
            elif not isinstance(reply, Queued) and hasattr(command, "id"):
                self._forget(command.id)

    def look(self) -> Sequence[Wakeup]:
        """What has happened since the last look, to be called under the connection's lock."""
        if not self._queued:
            return ()
        version = self._connection.read("PRAGMA data_version")
        if version == self._version:
            return ()
        self._version = version
        news = (self._news(entry_id, key) for entry_id, key in list(self._queued.items()))
        return [wakeup for wakeup in news if wakeup is not None]

    def _news(self, entry_id: str, key: bytes) -> Wakeup | None:
        """Whoever still queues is told once that it has become the head."""
        entry, first = self._connection.peek(key, entry_id)
        if isinstance(entry, Place):
            if first != entry_id or entry_id in self._heads:
                return None
            self._heads.add(entry_id)
        else:
            self._forget(entry_id)
        return _told(entry, key, fingerprint(entry_id))

    def _forget(self, entry_id: str) -> None:
        self._queued.pop(entry_id, None)
        self._heads.discard(entry_id)


def _told(entry: Entry | None, key: bytes, lease: str) -> Wakeup:
    """It was granted, or it should ask and be told."""
    if isinstance(entry, Hold) and entry.state == "unclaimed":
        grant = entry.token, entry.slots, entry.expires - entry.ttl, entry.ttl
        return Wakeup(key, lease, "", "granted", *grant, proof=proof_of(key, entry.id, *grant))
    return Wakeup(key, lease, "", "head")


def begin_to_listen(connection: Connection) -> tuple[Post | None, Watch | None]:
    """A socket of our own, or, where there can be none, a watch over what we queue for."""
    if connection.site.datagrams:
        try:
            return Post(), None
        except OSError:
            return None, Watch(connection)
    return None, Watch(connection)


def sender(connection: Connection) -> Post | None:
    """A socket that only sends, for a connection that nobody waits at."""
    if not connection.site.datagrams:
        return None
    try:
        return Post(listening=False)
    except OSError:
        return None
