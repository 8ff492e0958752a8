"""One statement for a lone command, which is refused if anybody has touched the key meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable, IncompatibleVersion
from dibs.model import Acquire, Granted, Lost, Refused, Release, Released, Renew, Renewed
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import StoreFile
from dibs.testing import ManualClock

KEY = b"lock:x"


def acquire(lease_id: str, *, queue: bool = False) -> Acquire:
    return Acquire(KEY, lease_id, "o", 30.0, queue=queue)


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every connection that a test makes is closed behind it."""
    made: list[Connection] = []
    make = Connection.__init__

    def noted(self: Connection, site: StoreFile) -> None:
        make(self, site)
        made.append(self)

    monkeypatch.setattr(Connection, "__init__", noted)
    yield
    for connection in made:
        connection.close()


@pytest.fixture
def site(tmp_path: Path) -> StoreFile:
    return StoreFile(f"sqlite:///{tmp_path}/leases.db", ManualClock(), None)


def statements(connection: Connection, command: Acquire | Release | Renew) -> list[str]:
    """What SQLite is asked for the sake of one command, by its first words."""
    told: list[str] = []
    assert connection._db is not None
    connection._db.set_trace_callback(lambda text: told.append(text.split()[0]))
    connection.apply([command])
    connection._db.set_trace_callback(None)
    return told


def test_a_key_that_was_used_before_takes_one_statement(site: StoreFile) -> None:
    connection = Connection(site)
    connection.apply([acquire("a")])
    assert statements(connection, Renew(KEY, "a", 30.0)) == ["UPDATE"]
    assert statements(connection, Release(KEY, "a")) == ["UPDATE"]
    assert statements(connection, acquire("b")) == ["UPDATE"]


def test_others_on_other_keys_are_in_nobodys_way(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([acquire("a")])
    other.apply([Acquire(b"lock:y", "b", "o", 30.0)])
    assert statements(connection, Release(KEY, "a")) == ["UPDATE"]


def test_what_others_did_to_the_key_is_seen(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([acquire("a")])
    connection.apply([Release(KEY, "a")])
    other.apply([acquire("b")])
    assert isinstance(connection.apply([acquire("c")])[0][0], Refused)
    assert connection.apply([Release(KEY, "b")])[0] == [Released()]
    [granted] = other.apply([acquire("d")])[0]
    assert isinstance(granted, Granted)


def test_a_refusal_is_never_given_from_memory(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([acquire("a")])
    other.apply([Release(KEY, "a")])
    assert isinstance(connection.apply([acquire("b")])[0][0], Granted)


def test_a_queue_is_joined_in_a_transaction(site: StoreFile) -> None:
    """Nothing of it may be in the file if the rest is not."""
    connection, other = Connection(site), Connection(site)
    connection.apply([acquire("a")])
    other.apply([Release(KEY, "a")])
    [granted] = connection.apply([acquire("b", queue=True)])[0]  # our copy has a place for it
    assert isinstance(granted, Granted)
    assert connection.read("SELECT id FROM lease_entries") == []


def test_a_lone_waiter_and_a_lone_burial_leave_nothing_half_done(site: StoreFile) -> None:
    """Nobody else writes in between, so the copy in memory would seem good."""
    connection = Connection(site)
    connection.apply([acquire("a")])
    connection.apply([acquire("b", queue=True)])
    connection.apply([acquire("c", queue=True)])
    assert connection.read("SELECT waiting FROM lease_keys") == [(2,)]
    connection.apply([Release(KEY, "b", tombstone=60.0)])
    connection.apply([Release(KEY, "c")])
    connection.apply([Release(KEY, "a", tombstone=60.0)])
    assert connection.read("SELECT waiting, tombs, used FROM lease_keys") == [(0, 2, 0)]
    assert connection.read("SELECT count(*) FROM lease_entries") == [(2,)]


def test_a_transaction_that_was_left_open_is_undone_first(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([acquire("a")])
    connection.apply([Release(KEY, "a")])
    assert connection._db is not None
    connection._db.execute("BEGIN IMMEDIATE")
    connection._db.execute("UPDATE lease_keys SET last = 0")
    [mine] = connection.apply([acquire("b")])[0]
    assert isinstance(mine, Granted)
    assert isinstance(other.apply([acquire("c")])[0][0], Refused)


def test_a_batch_goes_on_after_one_bad_command(site: StoreFile) -> None:
    connection = Connection(site)
    bad = Acquire(b"lock:bad", "b", "\ud800", 30.0)
    connection.apply([acquire("a"), bad, Acquire(b"lock:z", "z", "o", 30.0)])
    replies, _ = connection.apply([acquire("c"), Release(KEY, "a"), Release(b"lock:z", "z")])
    assert isinstance(replies[0], Refused)
    assert replies[1:] == [Released(), Released()]
    assert connection.read("SELECT count(*) FROM lease_keys WHERE used > 0") == [(0,)]


def test_a_key_that_was_thrown_out_and_made_anew_is_not_mistaken(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    [first] = connection.apply([acquire("a")])[0]
    connection.apply([Release(KEY, "a")])
    other.sweep([KEY])
    [second] = other.apply([acquire("b")])[0]
    other.apply([Release(KEY, "b")])
    [third] = connection.apply([acquire("c")])[0]
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert isinstance(third, Granted)
    assert first.token < second.token < third.token


def test_an_expired_lease_is_not_renewed_from_memory(site: StoreFile) -> None:
    connection = Connection(site)
    connection.apply([acquire("a")])
    assert isinstance(connection.apply([Renew(KEY, "a", 30.0)])[0][0], Renewed)
    assert isinstance(site.clock, ManualClock)
    site.clock.advance(31.0)
    assert isinstance(connection.apply([Renew(KEY, "a", 30.0)])[0][0], Lost)


def test_another_boot_is_noticed(site: StoreFile, tmp_path: Path) -> None:
    """It changes every row, so nobody goes on from memory."""
    connection = Connection(site)
    connection.apply([acquire("a")])
    theirs = StoreFile(f"sqlite:///{tmp_path}/leases.db", ManualClock(), "another")
    Connection(theirs).connect()
    with pytest.raises(BackendUnavailable, match="two living boots"):
        connection.apply([Renew(KEY, "a", 30.0)])


def test_another_format_is_noticed_within_a_second(site: StoreFile) -> None:
    connection, other = Connection(site), Connection(site)
    connection.apply([acquire("a")])
    other.read("UPDATE lease_meta SET format = 999")
    assert isinstance(site.clock, ManualClock)
    site.clock.advance(1.1)
    with pytest.raises(IncompatibleVersion, match="format 999"):
        connection.apply([Renew(KEY, "a", 30.0)])


def test_what_no_row_can_hold_costs_only_its_own_command(site: StoreFile) -> None:
    connection = Connection(site)
    connection.apply([acquire("a")])
    connection.apply([Release(KEY, "a")])
    [failed] = connection.apply([Acquire(KEY, "b", "\ud800", 30.0)])[0]
    assert type(failed).__name__ == "Failed"
    assert isinstance(connection.apply([acquire("c")])[0][0], Granted)
