"""What a worker is told, on its standard input: nothing of it can be seen by `ps`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from dibs.testing.torture.worlds import WorldName


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """One worker's part."""

    number: int
    """Its row on the board."""
    world: WorldName
    seed: int
    url: str
    """With its password, should it have one."""
    prefix: str
    tasks: int
    """So many tasks or threads take turns."""
    names: list[str]
    """What to contend for, without the prefix: `lock-1`, `semaphore-2`."""
    ttl: float
    wait: float
    """The longest that a call waits in a queue."""
    folder: str
    parent: int
    """The supervisor's process id."""

    @property
    def history(self) -> Path:
        """Where this worker records what it saw."""
        return Path(self.folder, f"history-{self.number}-{self.seed}.jsonl")

    def write(self) -> bytes:
        """As one line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_orders() -> Orders:
    """The line that the supervisor wrote. Its end of the pipe stays open: see `leash`."""
    return Orders(**json.loads(sys.stdin.buffer.readline()))
