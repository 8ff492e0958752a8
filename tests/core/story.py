"""A key whose story is told a line at a time: who asks for what, and when."""

from typing import Any

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.names import fingerprint
from dibs.model import (
    Acquire,
    Command,
    Inspect,
    Notification,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
    Status,
)

KEY = b"semaphore:k"
NOON = 1_700_000_000_000_000
"""A stamp: the wall clock when the story begins."""


class Story:
    """The ledger over a real book. Store time begins at 0; `woken` are the last command's notifications."""

    def __init__(self, book: MemoryBook | None = None) -> None:
        self.book = book or MemoryBook()
        self.now = 0.0
        self.woken: list[Notification] = []
        self.stamp: int | None = None

    def at(self, now: float) -> "Story":
        self.now = now
        return self

    def tell(self, command: Command) -> Reply:
        stamp = NOON + int(self.now * 1e6) if self.stamp is None else self.stamp
        reply, self.woken = ledger.apply(self.book, command, self.now, stamp)
        return reply

    def acquire(self, id_: str, **wishes: Any) -> Reply:
        wishes = {"ttl": 30.0, "owner": f"owner of {id_}", **wishes}
        return self.tell(Acquire(KEY, id_, **wishes))

    def wait(self, id_: str, **wishes: Any) -> Reply:
        return self.acquire(id_, queue=True, **wishes)

    def renew(self, id_: str, ttl: float = 30.0) -> Reply:
        return self.tell(Renew(KEY, id_, ttl))

    def release(self, id_: str, retain: float = 0.0, tombstone: float = 0.0) -> Reply:
        return self.tell(Release(KEY, id_, retain, tombstone))

    def resize(self, id_: str, units: int, seq: int) -> Reply:
        return self.tell(Resize(KEY, id_, units, seq))

    def revoke(self, id_: str | None = None, now: bool = False) -> Reply:
        lease = None if id_ is None else fingerprint(id_)
        return self.tell(Revoke(KEY, lease, "maintenance", now))

    def status(self) -> Status:
        reply = self.tell(Inspect(KEY))
        assert isinstance(reply, Status)
        return reply

    def pushed(self) -> list[tuple[str, str]]:
        """Whom the last command woke, and why."""
        names = {fingerprint(id_): id_ for id_ in "abcdefghijklmnopqrstuvwxyz"}
        return [(names[notification.lease], notification.event) for notification in self.woken]
