"""What the tests of the SQLite store share."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dibs.model import Acquire, Command, Notification, Reply
from dibs.stores.sqlite import SqliteStore


class Opened:
    """A connection of a thread that is open and listens."""

    def __init__(self, path: Path, options: str = "", **more: Any) -> None:
        store = SqliteStore(f"sqlite:///{path}{options}", **more)
        self.connection: Any = store.blocking_connection()
        self.connection.open(10)
        self.connection.subscribe(10)
        self.close, self.after_fork = self.connection.close, self.connection.after_fork

    @property
    def inbox(self) -> str:
        return str(self.connection.inbox)

    def apply(self, commands: Sequence[Command]) -> list[Any]:
        return list(self.connection.apply(commands, 10))

    def say(self, command: Command) -> Reply:
        """The reply to one command."""
        found: list[Reply] = self.connection.apply([command], 10)
        return found[0]

    def notifications(self, timeout: float) -> Sequence[Notification]:
        found: Sequence[Notification] = self.connection.notifications(timeout)
        return found


def acquire(key: bytes, lease: str, **more: Any) -> Acquire:
    return Acquire(key, lease, f"owner of {lease}", more.pop("ttl", 30.0), **more)


def rows(path: Path, statement: str) -> list[Any]:
    """What stands in the file, or what a statement that changes it returns."""
    with sqlite3.connect(path) as database:
        found = database.execute(statement).fetchall()
    database.close()
    return found
