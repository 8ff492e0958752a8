"""Records in this process, for tests: `memory://`, or `memory://name` shared by all who name it."""

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from dibs.server.records.bounds import check_address, check_kind, check_page, check_value
from dibs.server.records.port import Conflict, Entry, Record


class _Shelf:
    """What lies in one place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.documents: dict[tuple[str, str], Record] = {}
        self.lines: list[Entry] = []
        self.count = 0
        self.revision = 0


_shelves: WeakValueDictionary[str, _Shelf] = WeakValueDictionary()
_making = threading.Lock()


class MemoryRecords:
    """Records that end with those who use them."""

    def __init__(self, url: str) -> None:
        with _making:
            self._shelf = _shelves.get(url) or _Shelf()
            _shelves[url] = self._shelf

    async def open(self) -> None:
        """Nothing is to be done."""

    async def close(self) -> None:
        """Nothing is to be done."""

    async def worries(self) -> Sequence[str]:
        return ()

    async def revision(self) -> int:
        return self._shelf.revision

    async def get(self, kind: str, name: str) -> Record | None:
        check_address(kind, name)
        return self._shelf.documents.get((kind, name))

    async def all(self, kind: str) -> Sequence[Record]:
        check_kind(kind)
        with self._shelf.lock:
            return [
                record for (of, _), record in sorted(self._shelf.documents.items()) if of == kind
            ]

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_address(kind, name)
        check_value(value)
        with self._shelf.lock:
            self._check(kind, name, expected)
            record = Record(kind, name, value, expected + 1)
            self._shelf.documents[kind, name] = record
            self._shelf.revision += 1
        return record

    async def delete(self, kind: str, name: str, expected: int) -> None:
        check_address(kind, name)
        with self._shelf.lock:
            self._check(kind, name, expected)
            if self._shelf.documents.pop((kind, name), None) is not None:
                self._shelf.revision += 1

    async def append(self, value: bytes) -> int:
        check_value(value)
        with self._shelf.lock:
            self._shelf.count += 1
            self._shelf.lines.append(Entry(self._shelf.count, value))
            return self._shelf.count

    async def log(self, before: int | None, limit: int) -> Sequence[Entry]:
        check_page(before, limit)
        found = [each for each in self._shelf.lines if before is None or each.number < before]
        return found[: -limit - 1 : -1]

    async def oldest(self, limit: int) -> Sequence[Entry]:
        check_page(None, limit)
        return self._shelf.lines[:limit]

    async def forget(self, lines: Sequence[Entry]) -> None:
        with self._shelf.lock:
            self._shelf.lines = [each for each in self._shelf.lines if each not in lines]

    def _check(self, kind: str, name: str, expected: int) -> None:
        found = self._shelf.documents.get((kind, name))
        if (found.version if found else 0) != expected:
            raise Conflict(f"{kind} {name!r}")
