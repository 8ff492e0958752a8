"""The part of a store with compare-and-set that differs: one cell for each key, to be loaded and swapped."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from dibs.core.book import MemoryBook
from dibs.errors import Corrupt, DibsError, IncompatibleVersion
from dibs.model import Finding, Notification
from dibs.stores.snapshot import State


class Cell(msgspec.Struct, frozen=True):
    """A key's value as it was loaded."""

    version: Any
    """What the store compares in a swap. None: the key does not exist."""
    state: State | None
    """The book; None if the key does not exist."""
    where: str = ""
    """What an operator has to delete if the book can't be read, such as `in the Lease dibs-lock.a`."""


class Change(msgspec.Struct, frozen=True):
    """The new value of a cell."""

    state: State | None
    """The book; None deletes the cell."""
    book: MemoryBook
    """The same, for what the store shows of it."""
    notifications: Sequence[Notification]
    """For other processes. Lost ones cost time, not exclusion."""
    is_dated: bool = False
    """Entries were written with their end by the store's date, so the answer's date must be noted."""
    grows: bool = False
    """An id was added. Raise `TooLarge` at a lower limit than for other changes, so that what is in the cell
    can still be renewed and released."""


class SwapConflict(Exception):
    """The cell is not of the version that the swap expected; nothing was written."""

    def __init__(self, cell: Cell | None = None) -> None:
        super().__init__()
        self.cell: Cell | None = cell
        """The cell as it is now, if the answer told."""


class TooLarge(Exception):
    """The store takes no value of this size; nothing was written."""


type Receive = Callable[[Sequence[Notification] | DibsError], None]
"""Takes notifications; or an error: the subscription has ended."""


log: logging.Logger = logging.getLogger("dibs")


async def load_readable(cells: "Cells", keys: Sequence[bytes]) -> Sequence[tuple[bytes, Cell]]:
    """Load cells for a list, without those that cannot be read."""

    async def load(key: bytes) -> Cell | None:
        try:
            return await cells.load(key)
        except (Corrupt, IncompatibleVersion) as error:
            log.debug("left out of the list: %s", error)
            return None

    loaded = await asyncio.gather(*map(load, keys))
    return [(key, cell) for key, cell in zip(keys, loaded, strict=True) if cell is not None]


class Cells(Protocol):
    """The cells of a store, used in one event loop.

    Every method raises `DibsError` if it fails; `BackendUnavailable` if the cell may or may not have been
    swapped. A call that is cancelled leaves no answer behind for another one.
    """

    async def open(self) -> None:
        """Connect, and raise if the store cannot be used. Can be called again after `close`."""

    async def close(self) -> None:
        """Disconnect. Subscriptions end without an error."""

    async def load(self, key: bytes) -> Cell:
        """Return the cell, not older than this call."""

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        """Write a cell if it still has this version; return the new version.

        Raises `SwapConflict` if it has another one, `TooLarge`. The notifications are sent with the write, or
        after it.
        """

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        """Hand notifications for this inbox to `receive` from now on; return what ends it.

        A store without notifications does nothing.
        """

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        """The next keys that begin with `prefix`, in byte order, after `cursor`; and the next cursor."""

    async def examine(self) -> Sequence[Finding]:
        """Return what `dibs doctor` reports about the store."""

    def part(self) -> None:
        """Close idle connections now, and busy ones when they are idle. The loop ends: wait for nothing."""

    def after_fork(self) -> None:
        """In the child: close inherited sockets without sending anything."""
