"""Idle keys are thrown out, and fencing tokens rise all the same."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.model import Granted, Release
from dibs.stores.sqlite import maintenance
from tests.stores.sqlite_help import ManualClock, acquire, blocking, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def keys(backend: Any) -> int:
    [(rows,)] = backend._connection.read("SELECT count(*) FROM lease_keys")
    return int(rows)


def cycle(backend: Any, key: bytes, lease: str, **more: Any) -> int:
    granted, _ = run(backend.apply([acquire(key, lease, **more), Release(key, lease)]))
    return int(granted.token)


def test_tokens_rise_though_the_key_and_the_time_are_gone(path: Path) -> None:
    clock = ManualClock()
    backend = blocking(path, clock=clock)
    token = cycle(backend, b"lock:x", "a")
    for n in range(100):
        cycle(backend, b"lock:%d" % n, "a")
    assert keys(backend) == 101
    assert maintenance.maintain(backend._connection) == []
    assert keys(backend) == 0
    clock.wall -= 10**12
    run(backend.close())
    backend = blocking(path, clock=clock)
    assert cycle(backend, b"lock:x", "b") > token
    run(backend.close())


def test_a_connection_that_remembers_learns_of_the_sweep(path: Path) -> None:
    clock = ManualClock()
    one, other = blocking(path, clock=clock), blocking(path, clock=clock)
    first = cycle(one, b"lock:x", "a")
    highest = cycle(one, b"lock:y", "a", floor=first + 10**9)
    other._connection.sweep([b"lock:x", b"lock:y"])
    assert keys(one) == 0
    assert cycle(one, b"lock:x", "b") > highest
    run(one.close())
    run(other.close())


def test_what_is_in_use_is_spared(path: Path) -> None:
    clock = ManualClock()
    backend = blocking(path, clock=clock)
    run(backend.apply([acquire(b"lock:held", "h", ttl=1e6)]))
    run(backend.apply([Release(b"lock:buried", "late", tombstone=1e6)]))
    run(backend.apply([acquire(b"lock:kept", "k"), Release(b"lock:kept", "k", retain=1e6)]))
    for n in range(200):
        cycle(backend, b"lock:%d" % n, "a")
    maintenance.maintain(backend._connection)
    assert keys(backend) == 3
    run(backend.close())


def test_a_few_idle_keys_stay_for_their_next_use(path: Path) -> None:
    backend = blocking(path)
    for n in range(10):
        cycle(backend, b"lock:%d" % n, "a")
    maintenance.maintain(backend._connection)
    assert keys(backend) == 10
    run(backend.close())


def test_what_has_ended_is_settled_for_those_who_wait(path: Path) -> None:
    clock = ManualClock()
    backend = blocking(path, clock=clock)
    run(backend.apply([acquire(b"lock:x", "dead", ttl=2.0)]))
    waiter = acquire(b"lock:x", "w", queue=True, inbox="somewhere")
    run(backend.apply([waiter]))
    clock.advance(2.5)
    [push] = maintenance.maintain(backend._connection)
    assert (push.event, push.lease, push.inbox) == ("granted", fingerprint("w"), "somewhere")
    assert isinstance(run(backend.apply([waiter]))[0], Granted)
    run(backend.close())


def test_a_large_table_is_swept_in_turns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "CHUNK", 100)
    monkeypatch.setattr(maintenance, "CHUNKS", 2)
    backend = blocking(path)
    for n in range(500):
        cycle(backend, b"lock:%03d" % n, "a")
    left = []
    for _ in range(4):
        maintenance.maintain(backend._connection)
        left.append(keys(backend))
    assert left == [300, 100, 0, 0]
    run(backend.close())


def test_a_large_log_is_emptied_and_a_reader_only_delays_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LARGE_LOG", 50_000)
    monkeypatch.setattr(maintenance, "TRIES", 3)
    monkeypatch.setattr(maintenance, "EVERY", 10**9)
    backend = blocking(path)
    log = backend._connection.file.log_size
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM lease_keys").fetchall()
    for n in range(200):
        cycle(backend, b"lock:%d" % n, "a")
    maintenance.maintain(backend._connection)
    assert log() > 50_000, "somebody reads what lies in it"
    assert cycle(backend, b"lock:x", "b") > 0
    reader.close()
    maintenance.maintain(backend._connection)
    assert log() <= 50_000
    run(backend.close())
