"""Records in this process, for tests: `memory://`, or `memory://name` to share them by name."""

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from dibs.server.records.port import (
    Conflict,
    LogEntry,
    Record,
    check_key,
    check_kind,
    check_page,
    check_value,
)


class _Data:
    """The data that all records of one URL share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[tuple[str, str], Record] = {}
        self.revision = 0
        self.lines: list[LogEntry] = []
        self.last_number = 0


_data_by_url: WeakValueDictionary[str, _Data] = WeakValueDictionary()
_making = threading.Lock()


class MemoryRecords:
    """See `Records`. The data ends with the last object of its URL."""

    def __init__(self, url: str) -> None:
        with _making:
            self._data = _data_by_url.setdefault(url, _Data())

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def warnings(self) -> Sequence[str]:
        return ()

    async def revision(self) -> int:
        return self._data.revision

    async def get(self, kind: str, name: str) -> Record | None:
        check_key(kind, name)
        return self._data.records.get((kind, name))

    async def all(self, kind: str) -> Sequence[Record]:
        check_kind(kind)
        with self._data.lock:
            records = sorted(self._data.records.items())
            return [record for (of, _), record in records if of == kind]

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_key(kind, name)
        check_value(value)
        record = Record(kind, name, value, expected + 1)
        with self._data.lock:
            self._check_version(kind, name, expected)
            self._data.records[kind, name] = record
            self._data.revision += 1
        return record

    async def delete(self, kind: str, name: str, expected: int) -> None:
        check_key(kind, name)
        with self._data.lock:
            self._check_version(kind, name, expected)
            if self._data.records.pop((kind, name), None) is None:
                raise Conflict(f"{kind} {name!r}")
            self._data.revision += 1

    def _check_version(self, kind: str, name: str, expected: int) -> None:
        found = self._data.records.get((kind, name))
        if (found.version if found else 0) != expected:
            raise Conflict(f"{kind} {name!r}")

    async def append(self, value: bytes) -> int:
        check_value(value)
        with self._data.lock:
            self._data.last_number += 1
            self._data.lines.append(LogEntry(self._data.last_number, value))
            return self._data.last_number

    async def log(self, before: int | None, limit: int) -> Sequence[LogEntry]:
        check_page(before, limit)
        found = [each for each in self._data.lines if before is None or each.number < before]
        return found[: -limit - 1 : -1]

    async def oldest(self, limit: int) -> Sequence[LogEntry]:
        check_page(None, limit)
        return self._data.lines[:limit]

    async def forget(self, lines: Sequence[LogEntry]) -> None:
        with self._data.lock:
            self._data.lines = [each for each in self._data.lines if each not in lines]
