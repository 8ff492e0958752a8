"""What the tests of the SQLite store share."""

import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from dibs.model import Acquire
from dibs.stores.sqlite import SqliteStore
from tests.connections import connection_to


class ManualClock:
    """Time that stands still until it is told otherwise."""

    def __init__(self, time: float = 1000.0, wall: int = 1_700_000_000_000_000) -> None:
        self.time = time
        self.wall = wall

    def now(self) -> float:
        return self.time

    def stamp(self) -> int:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self.wall += int(seconds * 1e6)


def run[R](coroutine: Coroutine[Any, Any, R]) -> R:
    """Step a coroutine of the blocking kind: it must end without suspending."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a blocking connection suspended")


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def blocking(path: Path, **options: Any) -> Any:
    """An open blocking backend; typed loosely, as tests look inside."""
    backend = connection_to(SqliteStore(url_of(path), **options), "blocking")
    run(backend.open())
    return backend


def acquire(key: bytes, lease: str, **more: Any) -> Acquire:
    return Acquire(key, lease, f"owner of {lease}", more.pop("ttl", 30.0), **more)


PREAMBLE = """
import sys
sys.path.insert(0, {root!r})
from tests.stores.sqlite_help import *
from dibs.model import *
from pathlib import Path
path = Path(sys.argv[1])
"""


def process(program: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a program of its own; its first argument is the file, `path` to it."""
    text = PREAMBLE.format(root=str(Path(__file__).parents[2])) + program
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: "subprocess.Popen[str]", seconds: float = 60) -> str:
    """Wait for a program to end well, and return what it printed."""
    try:
        out, err = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        raise
    assert started.returncode == 0, err
    assert not err, err
    return out
