"""The ledgers in Lua, in SQL and over rows of SQLite answer as the one in Python does, in each way to ask."""

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from math import inf, nan
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings

from dibs.core.book import bits_of
from dibs.model import Acquire, Command, Failed, Granted, Inspect, Release, Released, Status
from dibs.stores.postgres import schema
from dibs.stores.redis import ledger
from dibs.stores.registry import store_for
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from dibs.testing import ManualClock
from tests.core.plans import PLANS as DRAWN
from tests.core.plans import VECTORS
from tests.sampling import EVERY, examples, sampled
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.differential import CROWDS, PLANS, Outcome, Subject, follow
from tests.stores.places import Place
from tests.stores.postgres.database import Database, database
from tests.stores.redis.ledger_scripted import Scripted

pytestmark = pytest.mark.once  # what a server does is the same for each version of Python


class InRows:
    """SQLite: by a connection that remembers, one that is reopened for each batch, or two in turns."""

    omits_passing_heads = False
    sweeps = True

    def __init__(self, folder: Path, manner: str) -> None:
        self._folder = folder
        self._manner = manner
        self._files = 0
        self.connections: list[Connection] = []

    def empty(self) -> None:
        self.close()
        self._files += 1

    def close(self) -> None:
        while self.connections:
            self.connections.pop().close()

    def apply(self, batch: Sequence[Command], time: ManualClock) -> Outcome:
        if not self.connections:
            file = StoreFile(f"sqlite:///{self._folder}/{self._files}.db", time, None)
            self.connections = [Connection(file), Connection(file)]
        if self._manner == "reopened":
            self.connections[0].close()
        elif self._manner == "in turns":
            self.connections.reverse()
        return self.connections[0].apply(batch)

    def sweep(self, time: ManualClock, keys: Sequence[bytes]) -> None:
        self.connections[0].sweep(keys)

    def check(self) -> None:
        """The row of a key knows of other rows how many they are, and that none ends earlier."""
        for connection in self.connections[:1]:
            for key, waiting, holds, tombs, due, used, taken, *hold in connection.read(
                "SELECT key, waiting, holds, tombs, due, used, taken, iif(id IS NULL, 0, units),"
                " iif(id IS NULL, '', slots), iif(id IS NULL, NULL, expires) FROM lease_keys"
            ):  # the rest of a released hold does not matter
                rows = connection.read(
                    "SELECT kind, units, slots, expires FROM lease_entries WHERE key = ?", key
                )
                units, slots, expires = hold
                ends = [row[3] for row in rows] + [expires] * (expires is not None)
                assert all(due <= end for end in ends)
                counts = [sum(row[0] == kind for row in rows) for kind in (0, 1, 2)]
                assert [waiting, holds, tombs] == counts
                held = [(units, slots), *((row[1], row[2]) for row in rows if row[0] == 1)]
                assert used == sum(units for units, _ in held)
                numbers = [int(slot) for _, slots in held for slot in slots.split(",") if slot]
                assert int.from_bytes(taken) == bits_of(numbers)


SUBJECTS = [
    "redis function",
    "redis script",
    "postgres together",
    "postgres one by one",
    "postgres carefully",
    "sqlite remembering",
    "sqlite reopened",
    "sqlite in turns",
]


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    with made(request.param, request, tmp_path_factory) as found:
        yield found


@contextmanager
def made(
    name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scripted | Database | InRows]:
    store, _, manner = name.partition(" ")
    if store == "redis":
        server = request.getfixturevalue("redis_server")
        with closing(Scripted(server, as_script=manner == "script")) as scripted:
            yield scripted
    elif store == "postgres":
        with in_sql(request.getfixturevalue("postgres_server"), manner) as found:
            yield found
    else:
        with closing(InRows(tmp_path_factory.mktemp("rows"), manner)) as rows:
            yield rows


@contextmanager
def in_sql(
    server: PostgresServer, manner: str, edit: Sequence[str] | None = None
) -> Iterator[Database]:
    url = server.new_database()
    with database(url, manner, edit) as found:
        yield found
    server.drop_database(url)


@EVERY
def test_rows_answer_as_memory_does(subject: Subject, every: int) -> None:
    """The conformance suite replays all vectors in the usual way, over connections."""
    for plan in (*PLANS, *VECTORS[::every]):
        if subject.sweeps or "sweep" not in plan:
            follow(plan, subject)


def test_a_batch_ends_no_more_than_it_may(subject: Subject, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["subject"] in ("postgres one by one", "postgres carefully"):
        pytest.skip("these are no batches")
    for plan in CROWDS:
        follow(plan, subject)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=DRAWN)
def test_any_plan_is_answered_alike(subject: Subject, plan: list[Any]) -> None:
    follow(plan, subject)


ODD: dict[str, list[dict[str, Any]]] = {
    "sqlite": [{"floor": 2**70}],
    "postgres": [{"note": b"bytes"}, {"units": 2.0, "capacity": 2}, {"priority": None}],
    "redis": [
        *({"units": units} for units in (2**53, 10**400)),
        *({"capacity": capacity} for capacity in (2**60, 1.5)),
        *({"priority": priority} for priority in (2**64, -(2**53))),
        *({"floor": floor} for floor in (2**53 - 1, 0.5, nan)),
        *({"ttl": "30"}, {"ttl": "30", "capacity": 1}, {"lock_delay": 10**400}),
        {"owner": ["no text"]},
    ],
}
EVERYWHERE: list[dict[str, Any]] = [
    *({name: "\ud800"} for name in ("id", "owner", "note")),
    {"floor": 2**64},
    {"capacity": inf},
]


@pytest.mark.parametrize("place", ["sqlite", "postgres", "redis"], indirect=True)
def test_a_command_that_no_row_can_hold_fails_alone(
    place: Place, request: pytest.FixtureRequest
) -> None:
    connection = store_for(place.url).blocking_connection()
    connection.open(10)
    key, fine = b"lock:odd", [Acquire(name, "a", "o", 30.0) for name in (b"lock:x", b"lock:z")]
    for values in EVERYWHERE + ODD[request.node.callspec.params["place"]]:
        odd = Acquire(key, **{"id": "a", "owner": "o", "ttl": 30.0, "capacity": 9, **values})
        batch: list[Command] = [fine[0], odd, fine[1], Release(b"lock:x", "a"), Inspect(key)]
        replies = connection.apply(batch, 10)
        kinds = [type(reply) for reply in replies]
        assert kinds == [Granted, Failed, Granted, Released, Status], values
        assert getattr(replies[1], "reason", "") == "invalid"
        assert getattr(replies[4], "holders", None) == ()
    connection.close()


MISTAKES = tomllib.loads(Path(__file__).with_name("planted_mistakes.toml").read_text())
"""By language, what the mistake does: the right text and the wrong one."""
LUA, SQL, SQL_FAST, SQL_LONE = (MISTAKES[each] for each in ("lua", "sql", "sql-fast", "sql-lone"))


@pytest.mark.parametrize("mistake", sampled(LUA, every=10))
def test_a_mistake_in_lua_is_found(redis_server: RedisServer, mistake: str) -> None:
    right, wrong = (text.encode() for text in LUA[mistake])
    assert ledger.LIBRARY.count(right) == 1, f"the Lua has changed: {right.decode()}"
    with closing(Scripted(redis_server, ledger.LIBRARY.replace(right, wrong))) as subject:
        with pytest.raises((AssertionError, ValueError)):
            follow_all(subject)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", sampled(SQL | SQL_FAST, every=10))
def test_a_mistake_in_sql_is_found(postgres_server: PostgresServer, mistake: str) -> None:
    find_in_sql(postgres_server, (SQL | SQL_FAST)[mistake], "together")


@pytest.mark.slow
@pytest.mark.parametrize("mistake", sampled(SQL_LONE | SQL_FAST, every=10))
def test_a_mistake_on_the_fast_path_is_found(postgres_server: PostgresServer, mistake: str) -> None:
    find_in_sql(postgres_server, (SQL_LONE | SQL_FAST)[mistake], "one by one")


def find_in_sql(server: PostgresServer, edit: Sequence[str], manner: str) -> None:
    planted = sum(migration.sql.count(edit[0]) for migration in schema.migrations())
    assert planted == 1, "nothing was planted, or too much"
    with in_sql(server, manner, edit) as subject:
        with pytest.raises((AssertionError, ValueError, psycopg.Error)):
            follow_all(subject, crowds=manner == "together")


def follow_all(subject: Subject, *, crowds: bool = True) -> None:
    for plan in (*PLANS, *VECTORS, *(CROWDS if crowds else [])):
        if subject.sweeps or "sweep" not in plan:
            follow(plan, subject)
