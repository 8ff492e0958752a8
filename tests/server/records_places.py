"""The places where records can lie, each with a way to spoil what lies there."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from dibs.server.records import records_for
from dibs.server.records.port import Records

SQLITE_SPOILT = {
    "format": "UPDATE dibs_service SET format = 'x'",
    "newer": "UPDATE dibs_service SET format = 99",
    "value": "UPDATE dibs_records SET version = 'x', value = 17",
    "gone": "DROP TABLE dibs_records",
}
POSTGRES_SPOILT = {
    "format": "DELETE FROM dibs.service_state",
    "newer": "UPDATE dibs.service_state SET format = 99",
    "value": "ALTER TABLE dibs.service_records ALTER value TYPE text USING 'x'",
    "gone": "DROP TABLE dibs.service_records",
}


@dataclass
class Place:
    """Where a service's records lie; each `records()` is another server's."""

    url: str
    spoil: Callable[[str], None] = field(default=lambda _: None)
    """Have something there that we never wrote: `format`, `newer`, `value` or `gone`."""

    def records(self) -> Records:
        return records_for(self.url)


def sqlite_place(folder: Path) -> Place:
    path = folder / "records.db"

    def spoil(what: str) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(SQLITE_SPOILT[what])

    return Place(f"sqlite:///{path}", spoil)


def redis_place(url: str, client: Callable[[], Any]) -> Place:
    state, keys = b"dibs:service:{dibs}:state", b"dibs:service:{dibs}:records:key"

    def spoil(what: str) -> None:
        with client() as db:
            match what:
                case "format":
                    db.hset(state, "format", "x")
                case "newer":
                    db.hset(state, "format", 99)
                case "value":
                    db.hset(keys, "a", "no version")
                case _:
                    db.delete(keys)
                    db.set(keys, "no hash")

    return Place(url, spoil)


def postgres_place(url: str) -> Place:
    def spoil(what: str) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(POSTGRES_SPOILT[what].encode())

    return Place(url, spoil)
