"""What a write may be stamped with."""

import pickle
import subprocess
import sys
from typing import Any

import pytest

import dibs.fencing
import dibs.sync
from dibs.fencing import StaleToken
from dibs.fencing.stale import stale
from dibs.fencing.stamp import stamp_of


def test_a_lease_has_its_stamp_of_any_kind() -> None:
    with dibs.sync.connect("memory://fencing-stamps") as client:
        with client.lock("a") as lease:
            assert stamp_of(lease) == (b"lock:a", lease.token, (0,))
            assert stamp_of(lease) == stamp_of(("lock:a", lease.token))
        with client.rwlock("a").write() as writer:
            assert stamp_of(writer) == (b"rwlock:a", writer.token, (0,))
        with client.semaphore("a", 4).acquire(units=3) as slots:
            assert stamp_of(slots).slots == (0, 1, 2)


def test_different_keys_have_different_texts() -> None:
    keys = [b"lock:a b", b"lock:a%20b", b"lock:a+b", b"lock:\xff", b"lock:\xc3\xbf", b"lock:%FF"]
    texts = [stamp_of((key, 1)).text for key in keys]
    assert len(set(texts)) == len(keys)
    assert texts[0] == "lock:a b"
    assert all(text.isascii() and text.isprintable() for text in texts)


def test_what_is_no_stamp_is_refused() -> None:
    no_stamps: list[Any] = ["lock:a", 7, None, ("lock:a",), ("", 1), (3, 1), ("a", 1, 2, 3)]
    for wrong in no_stamps:
        with pytest.raises(TypeError, match="lease"):
            stamp_of(wrong)
    no_tokens: list[Any] = [0, -1, 2**53, True, "17", 1.5, None]
    for token in no_tokens:
        with pytest.raises(ValueError, match="the token is"):
            stamp_of(("lock:a", token))
    no_slots: list[Any] = [-1, True, "0", None, 2**31]
    for slot in no_slots:
        with pytest.raises(ValueError, match="the slot is"):
            stamp_of(("lock:a", 1, slot))


def test_the_public_names_are_these() -> None:
    assert dibs.fencing.__all__ == [
        "AsyncRedisFence",
        "AsyncSqlFence",
        "FileFence",
        "RedisFence",
        "SqlFence",
        "StaleToken",
        "Stamped",
    ]
    for name in dibs.fencing.__all__:
        assert getattr(dibs.fencing, name).__doc__ or name == "Stamped"
    loaded = "import sys, dibs.fencing; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert not {"asyncio", "sqlite3", "redis", "psycopg"} & set(done.stdout.split())


def test_the_error_crosses_processes_and_hides_nothing() -> None:
    error = stale(b"lock:\x1b[2J", 3, 7, 9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is StaleToken
    assert (copy.token, copy.seen, copy.key, str(copy)) == (7, 9, error.key, str(error))
    assert "\x1b" not in str(error)
    assert "slot 3" in str(error)
