"""The leases that tasks and threads of this process hold: none may wait for its own."""

from typing import Any, Protocol
from weakref import ref

from dibs.core.names import fingerprint


class Nesting(Protocol):
    """A lease that stands, or has ended; it may have to ask which."""

    _id: str
    _options: Any

    @property
    def _stands(self) -> bool:
        """Whether it is held: neither lost nor given up."""

    async def _still_stands(self) -> bool:
        """Whether it is held; asks the store where nobody here can know."""


SPARE = 256
"""Rebuild the index when it has this many entries more than twice the number of leases."""


class HeldByOwner:
    """The leases of each holder, weakly; beside them an index of the keys that a holder *may* hold.

    Any thread can change it, and an interrupt leaves nothing half done. Each lease is one entry of one
    dict, and only that counts. A writer first writes the lease, then adds its key to the index. A rebuild
    first replaces the index and then scans the leases, so it misses no writer that used the old one.
    """

    __slots__ = ("_added", "_index", "_leases", "_old")

    def __init__(self) -> None:
        self._leases: dict[tuple[bytes, object], ref[Nesting]] = {}
        self._index: dict[int, set[bytes]] = {}
        """By the holders' numbers, so that it keeps none alive; another may have a number later."""
        self._old: dict[int, set[bytes]] = {}
        self._added = 0

    def get(self, key: bytes, who: object) -> Nesting | None:
        """Return the lease on that key of that task or thread, which may have ended."""
        known = self._leases.get((key, who))
        return None if known is None else known()

    def put(self, key: bytes, who: object, lease: Nesting) -> None:
        """Note that a task or thread holds a lease from now on."""
        self._leases[key, who] = ref(lease)
        keys = self._index.get(id(who))
        if keys is None or key not in keys:
            self._add(key, who)

    def drop(self, key: bytes, who: object, lease: Nesting) -> None:
        """Forget a lease of a task or thread, unless another one on the key has replaced it."""
        entry = key, who
        known = self._leases.get(entry)
        if known is not None and ((found := known()) is lease or found is None):
            self._leases.pop(entry, None)

    def of(self, who: object) -> list[Nesting]:
        """Return all leases of that task or thread."""
        number = id(who)
        new, old = self._index.get(number), self._old.get(number)  # in this order
        keys = {*(new or ()), *(old or ())}
        found = [self.get(key, who) for key in keys]
        return [lease for lease in found if lease is not None]

    def names(self) -> dict[str, str]:
        """Return the names of the tasks and threads, by the fingerprints of their leases; for people."""
        found = {}
        for (_, who), known in list(self._leases.items()):
            if (lease := known()) is not None:
                name = getattr(who, "name", None) or getattr(who, "get_name", str)()
                found[fingerprint(lease._id)] = f" ({name})"
        return found

    def __len__(self) -> int:
        return len(self._leases)

    def _add(self, key: bytes, who: object) -> None:
        self._index.setdefault(id(who), set()).add(key)
        self._added += 1
        if self._added > 2 * len(self._leases) + SPARE:
            self._index_anew()

    def _index_anew(self) -> None:
        """Rebuild the index without what is held no more."""
        self._old = self._index  # for readers, until the new one is whole
        self._index = index = dict[int, set[bytes]]()
        for key, who in list(self._leases):
            index.setdefault(id(who), set()).add(key)
        # not before: if this was interrupted, the next does it again
        self._added = len(self._leases)
        self._old = {}
