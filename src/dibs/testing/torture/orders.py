"""Orders for workers, on standard input, and a board on which they show what they do, in shared memory."""

import json
import mmap
import struct
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from dibs.testing.torture.plan import MOST, PRIMITIVES, SideName


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """Orders for a worker. They come on standard input, which `ps` does not show."""

    number: int
    """Its row on the board."""
    side: SideName
    seed: int
    url: str
    """With its password, if it has one."""
    prefix: str
    tasks: int
    """Number of tasks or threads that take turns."""
    names: list[str]
    """What to contend for, without the prefix: `lock-1`, `semaphore-2`."""
    ttl: float
    wait: float
    """The longest that a call waits in a queue, in seconds."""
    folder: str
    parent: int
    """The supervisor's process id."""

    @property
    def history(self) -> Path:
        """File for the events that this worker sees."""
        return Path(self.folder, f"history-{self.number}-{self.seed}.jsonl")

    def write(self) -> bytes:
        """Encode it as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_orders() -> Orders:
    """Read the line that the supervisor wrote. Its end of the pipe stays open: see `leash`."""
    return Orders(**json.loads(sys.stdin.buffer.readline()))


_ROW = struct.Struct("=III")


class Board:
    """A row for each worker: what it holds, the cycles it has done, and how often the store was away."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_ROW.size * MOST))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def show(self, worker: int, held: Iterable[str], *, done: int = 0, cut_off: int = 0) -> None:
        """Show which primitives a worker holds; add cycles and outages since it showed last."""
        _, cycles, outages = self._row(worker)
        bits = sum(1 << PRIMITIVES.index(each) for each in held)
        _ROW.pack_into(self._memory, worker * _ROW.size, bits, cycles + done, outages + cut_off)

    def held(self, worker: int) -> tuple[str, ...]:
        """Primitives that a worker holds at this moment."""
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
