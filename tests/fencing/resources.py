"""Resources that many write to, each with its guard and without: what stands there in the end."""

import sqlite3
from pathlib import Path
from typing import Any, Protocol

import psycopg
import redis

from dibs.fencing import FileFence, RedisFence, SqlFence, Stamped


class Resource(Protocol):
    """Two places to write to: one that compares tokens, and one that believes everybody."""

    def write(self, by: Stamped, text: str) -> None: ...

    def write_unguarded(self, text: str) -> None: ...

    def read(self) -> tuple[str, str]:
        """What stands in the guarded place, and in the other."""

    def close(self) -> None: ...


class Sql:
    """Two rows of a table."""

    def __init__(self, connection: Any, mark: str) -> None:
        self.fence = SqlFence()
        self.connection = connection
        self._update = f"UPDATE thing SET text = {mark} WHERE name = {mark}"

    def create(self) -> None:
        self.connection.execute("CREATE TABLE thing (name TEXT, text TEXT)")
        self.connection.execute("INSERT INTO thing VALUES ('guarded', ''), ('unguarded', '')")
        self.connection.commit()
        self.fence.create(self.connection)
        self.connection.commit()

    def write(self, by: Stamped, text: str) -> None:
        try:
            self.fence.check(by, self.connection)
            self.connection.execute(self._update, (text, "guarded"))
            self.connection.commit()
        except BaseException:
            self.connection.rollback()
            raise

    def write_unguarded(self, text: str) -> None:
        self.connection.execute(self._update, (text, "unguarded"))
        self.connection.commit()

    def read(self) -> tuple[str, str]:
        rows = self.connection.execute("SELECT text FROM thing ORDER BY name").fetchall()
        self.connection.rollback()
        return rows[0][0], rows[1][0]

    def close(self) -> None:
        self.connection.close()


class Redis:
    """Two keys."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._fence = RedisFence(self._client)

    def write(self, by: Stamped, text: str) -> None:
        self._fence.call(by, "SET", "thing:guarded", text)

    def write_unguarded(self, text: str) -> None:
        self._client.set("thing:unguarded", text)

    def read(self) -> tuple[str, str]:
        return self._client.get("thing:guarded"), self._client.get("thing:unguarded")

    def close(self) -> None:
        self._client.close()


class Files:
    """Two files."""

    def __init__(self, folder: str) -> None:
        self._guarded, self._unguarded = Path(folder, "guarded"), Path(folder, "unguarded")

    def write(self, by: Stamped, text: str) -> None:
        FileFence(self._guarded).replace(by, text)

    def write_unguarded(self, text: str) -> None:
        self._unguarded.write_text(text)

    def read(self) -> tuple[str, str]:
        return self._guarded.read_text(), self._unguarded.read_text()

    def close(self) -> None:
        """Nothing is open."""


def resource(kind: str, place: str) -> Any:
    """The resource of that kind, where it is."""
    if kind == "sqlite":
        return Sql(sqlite3.connect(place, timeout=60), "?")
    if kind == "postgres":
        return Sql(psycopg.connect(place), "%s")
    return Redis(place) if kind == "redis" else Files(place)
