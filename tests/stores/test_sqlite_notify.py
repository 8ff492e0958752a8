"""Notifications of the SQLite store: what is sent arrives, garbage is dropped, and waiters can do without."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import connect
from dibs.model import Notification, Release
from dibs.stores.sqlite import notify
from tests.stores.sqlite_help import acquire, blocking, run

GRANT = Notification(b"lock:x", "f" * 24, "me", "granted", 7, (0, 2), 12.5, 5.0, "", "c" * 64)

notifications = st.builds(
    Notification,
    key=st.binary(min_size=1, max_size=523),
    lease=st.text(max_size=24),
    inbox=st.just("me"),
    event=st.sampled_from(["granted", "head", "revoked", "refused"]),
    token=st.integers(0, 2**53 - 1),
    slots=st.lists(st.integers(0, 1000), max_size=9).map(tuple),
    granted_at=st.floats(0, 1e9),
    claim_timeout=st.floats(0, 5),
    detail=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    proof=st.text("0123456789abcdef", max_size=64),
)


@given(st.lists(notifications, max_size=40))
def test_what_is_written_is_read(sent: list[Notification]) -> None:
    found: list[Notification] = []
    for datagram in notify.datagrams_of(sent):
        assert len(datagram) <= notify.MAX_SIZE
        found += notify.notifications_in(datagram, "me")
    assert found == sent


def test_many_share_datagrams_that_can_be_read() -> None:
    sent = [replace(GRANT, key=bytes([n % 256]) * 500) for n in range(400)]
    found: list[Notification] = []
    for datagram in notify.datagrams_of(sent):
        assert len(datagram) <= notify.MAX_SIZE
        found += notify.notifications_in(datagram, "me")
    assert found == sent


@given(st.binary(max_size=300))
def test_garbage_is_dropped(garbage: bytes) -> None:
    assert not notify.notifications_in(garbage, "me")
    assert not notify.notifications_in(notify.VERSION + garbage[:40], "me")


WHOLE = next(notify.datagrams_of([GRANT]))


@pytest.mark.parametrize(
    "datagram",
    [
        *(WHOLE[:size] for size in range(len(notify.VERSION), len(WHOLE))),
        b"DI1" + WHOLE[3:],
        WHOLE.replace(b'"granted"', b'"stolen"'),
        WHOLE.replace(b"12.5", b'"soon"'),
        WHOLE.replace(b"ffff", b"\xff\xff\xff\xff"),
        WHOLE + b"\n" + b"[" * 5000,
        WHOLE + b"\n{}",
        WHOLE + b"\n7",
    ],
)
def test_a_datagram_that_is_cut_or_changed_is_dropped(datagram: bytes) -> None:
    assert notify.notifications_in(datagram, "me") == []


@pytest.fixture
def short_path() -> Iterator[str]:
    """A folder of few datagrams: a socket's path has room for a hundred or so."""
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


async def test_without_sockets_it_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no sockets in this sandbox")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    url = f"sqlite:///{tmp_path}/leases.db"
    async with connect(url) as holder, connect(url) as waiter:
        await waiter.status("connected")
        assert waiter.session.loop_runtime().inbox == ""
        lease = await holder.lock("x").acquire()
        waiting = asyncio.ensure_future(waiter.lock("x").acquire(wait=20))
        while not (await holder.status("x")).waiting:
            await asyncio.sleep(0.01)
        await lease.release()
        await (await waiting).release()
        found = {finding.about: finding.told for finding in await holder.examine()}
        assert found["pushes"] == "datagram sockets are not available here: waiters poll"
