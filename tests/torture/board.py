"""What each worker is doing, in memory that all processes share: survives any of them."""

import mmap
import struct
from pathlib import Path
from typing import Final

IDLE: Final = 0
ASKING: Final = 1
HOLDING: Final = 2

_ROW = struct.Struct("=II")
WORKERS = 64


class Board:
    """A row for each worker: its state, and how many cycles it has done."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_ROW.size * WORKERS))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def show(self, worker: int, state: int, *, done: int = 0) -> None:
        """A worker tells its state, and the cycles it has done since it told last."""
        self._put(worker, state, self.cycles(worker) + done)

    def state(self, worker: int) -> int:
        return int(_ROW.unpack_from(self._memory, worker * _ROW.size)[0])

    def cycles(self, worker: int) -> int:
        return int(_ROW.unpack_from(self._memory, worker * _ROW.size)[1])

    def _put(self, worker: int, state: int, cycles: int) -> None:
        _ROW.pack_into(self._memory, worker * _ROW.size, state, cycles)

    def close(self) -> None:
        self._memory.close()
