"""What the tests of the SQLite store share."""

from pathlib import Path
from typing import Any

from dibs.model import Acquire
from dibs.stores.port import step
from dibs.stores.sqlite import SqliteStore
from tests.connections import connection_to

run = step
"""Steps a coroutine of the blocking kind: it must end without suspending."""


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def blocking(path: Path, **options: Any) -> Any:
    """An open connection of a thread; typed loosely, as tests look inside."""
    connection = connection_to(SqliteStore(url_of(path), **options), "blocking")
    run(connection.open())
    return connection


def acquire(key: bytes, lease: str, **more: Any) -> Acquire:
    return Acquire(key, lease, f"owner of {lease}", more.pop("ttl", 30.0), **more)
