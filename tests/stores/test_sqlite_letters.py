"""Datagrams: what is written is read, and garbage is not."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.model import Release, Wakeup
from dibs.stores.sqlite import post as letters
from tests.stores.sqlite_help import acquire, blocking, run

WAKEUP = Wakeup(b"lock:x", "f" * 24, "me", "granted", 7, (0, 2), 12.5, 5.0, "", "c" * 64)

wakeups = st.builds(
    Wakeup,
    key=st.binary(min_size=1, max_size=523),
    lease=st.text(max_size=24),
    inbox=st.just("me"),
    event=st.sampled_from(["granted", "head", "revoked", "refused"]),
    token=st.integers(0, 2**53),
    slots=st.lists(st.integers(0, 1000), max_size=9).map(tuple),
    granted_at=st.floats(0, 1e9),
    window=st.floats(0, 5),
    detail=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    proof=st.text("0123456789abcdef", max_size=64),
)


@given(st.lists(wakeups, max_size=40))
def test_what_is_written_is_read(sent: list[Wakeup]) -> None:
    found: list[Wakeup] = []
    for letter in letters.letters_of(sent):
        assert len(letter) <= letters.MAX_SIZE
        found += letters.wakeups_in(letter, "me")
    assert found == sent


def test_many_share_letters_that_can_be_read() -> None:
    sent = [replace(WAKEUP, key=bytes([n % 256]) * 500) for n in range(400)]
    found: list[Wakeup] = []
    for letter in letters.letters_of(sent):
        assert len(letter) <= letters.MAX_SIZE
        found += letters.wakeups_in(letter, "me")
    assert found == sent


@given(st.binary(max_size=300))
def test_garbage_is_dropped(garbage: bytes) -> None:
    assert not letters.wakeups_in(garbage, "me")
    assert not letters.wakeups_in(letters.VERSION + garbage[:40], "me")


FRIENDLY = next(letters.letters_of([WAKEUP, WAKEUP]))[len(letters.VERSION) :]


@pytest.mark.parametrize(
    "body",
    [
        *(FRIENDLY[:size] for size in range(1, len(FRIENDLY)) if size != len(FRIENDLY) // 2),
        b"\xff" + FRIENDLY[1:],
        FRIENDLY.replace(b"ffff", b"\xff\xff\xff\xff"),
    ],
)
def test_a_letter_of_a_clumsy_friend_is_dropped(body: bytes) -> None:
    assert list(letters.wakeups_in(letters.VERSION + body, "me")) == []


@pytest.fixture
def short_path() -> Iterator[str]:
    """A folder of few letters: a socket's path has room for a hundred or so."""
    with TemporaryDirectory(dir="/tmp", prefix="dibs") as folder:
        yield folder


def test_a_socket_that_is_a_file_is_removed(
    tmp_path: Path, short_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems without abstract names."""
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("tempfile.tempdir", short_path)
    holder, waiter = blocking(tmp_path / "leases.db"), blocking(tmp_path / "leases.db")
    monkeypatch.undo()
    inbox = Path(waiter.inbox)
    assert inbox.is_socket()
    run(holder.apply([acquire(b"lock:x", "a")]))
    run(waiter.apply([acquire(b"lock:x", "b", queue=True, inbox=waiter.inbox)]))
    run(holder.apply([Release(b"lock:x", "a")]))
    [push] = run(waiter.notifications(5))
    assert push.event == "granted"
    run(holder.close())
    run(waiter.close())
    assert not inbox.exists()


def test_without_sockets_it_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no sockets in this sandbox")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    backend = blocking(tmp_path / "leases.db")
    assert backend.inbox == ""
    assert backend._watch is not None
    run(backend.close())
