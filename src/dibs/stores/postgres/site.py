"""What all connections of one store share."""

import logging

from dibs.clock import Clock
from dibs.stores.postgres.url import Address

log = logging.getLogger("dibs")


class Site:
    """Where the database is, and what was found out about it. Nothing here needs a lock."""

    __slots__ = ("address", "clock", "has_schema", "is_pooled", "pushes", "work")

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self.address = address
        self.clock = clock
        """Tells the time in the database's stead, in tests."""
        self.has_schema = False
        """The schema is there, in a format that we read."""
        self.is_pooled = address.pooler == "yes"
        """Something in between may give each transaction another server connection."""
        self.pushes = address.pooler != "yes"
        """What is notified to us reaches us."""
        self.work = 0
        """Commands since the last upkeep."""

    @property
    def place(self) -> str:
        """Host, port and database, for messages."""
        return self.address.place

    def time(self) -> tuple[float | None, int | None]:
        """What to tell the ledger: nothing where the database reads its own clock."""
        clock = self.clock
        return (None, None) if clock is None else (clock.now(), clock.stamp())

    def found_deaf(self) -> None:
        """A test push didn't come: say so, once."""
        if self.pushes:
            self.pushes = False
            log.warning(
                "%s is behind a transaction pooler, so nothing can be pushed: waiters ask every "
                "few hundredths of a second instead. A URL that leads to the server itself is faster",
                self.place,
            )
