"""What each worker is doing, in memory that all processes share: survives any of them."""

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path

from dibs.testing.torture.plan import MOST, PRIMITIVES

_ROW = struct.Struct("=III")


class Board:
    """A row for each worker: what it holds, the cycles it has done, and how often the store was away."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_ROW.size * MOST))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def show(self, worker: int, held: Iterable[str], *, done: int = 0, cut_off: int = 0) -> None:
        """A worker tells which primitives it holds, and what came to pass since it told last."""
        _, cycles, outages = self._row(worker)
        bits = sum(1 << PRIMITIVES.index(each) for each in held)
        _ROW.pack_into(self._memory, worker * _ROW.size, bits, cycles + done, outages + cut_off)

    def held(self, worker: int) -> tuple[str, ...]:
        """Which primitives it holds at this moment."""
        bits = self._row(worker)[0]
        return tuple(each for place, each in enumerate(PRIMITIVES) if bits >> place & 1)

    def cycles(self, worker: int) -> int:
        return self._row(worker)[1]

    def outages(self, worker: int) -> int:
        return self._row(worker)[2]

    def _row(self, worker: int) -> tuple[int, int, int]:
        return _ROW.unpack_from(self._memory, worker * _ROW.size)

    def close(self) -> None:
        self._memory.close()
