"""Ways to the server: TLS, a socket in the file system, and a network that fails."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Granted, Inspect, Release, Released, Reply, Status
from dibs.testing import FaultProxy
from tests.servers.certificates import key_of, self_signed
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_files import give
from tests.stores.postgres.connections_help import KEY, Mode, Room, acquire, both, say, wire_of


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_server.port) as proxy:
        yield proxy


@both
def test_tls(mode: Mode, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "tls" / "server.crt")
    copy = tmp_path / "trusted.crt"
    copy.write_bytes(certificate.read_bytes())
    give(certificate.parent)
    key_of(certificate).chmod(0o600)
    options = {
        "ssl": "on",
        "ssl_cert_file": str(certificate),
        "ssl_key_file": str(key_of(certificate)),
    }

    async def body(room: Room) -> None:
        backend = await room.connect()
        in_use = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await wire_of(backend).run(in_use, 5) == [(True,)]
        large: list[Command] = [
            acquire("a", b"lock:%d" % number, note="x" * 50_000) for number in range(100)
        ]
        assert {type(reply) for reply in await backend.apply(large)} == {Granted}
        assert isinstance(await say(backend, acquire("a")), Granted)
        await say(backend, acquire("b", queue=True, inbox=backend.inbox))
        other = await room.connect(listen=False)
        assert await say(other, Release(KEY, "a")) == Released()
        assert [push.event for push in await backend.notifications(10)] == ["granted"]

    with PostgresServer(tmp_path / "server", options=options) as server:
        Room(mode, f"{server.url}?sslmode=verify-full&sslrootcert={copy}").run(body)


@both
def test_a_socket_in_the_file_system(mode: Mode, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    give(folder)

    async def body(room: Room) -> None:
        assert isinstance(await say(await room.connect(), acquire("a")), Granted)

    options = {"unix_socket_directories": str(folder)}
    with PostgresServer(tmp_path / "server", options=options) as server:
        url = f"postgresql:///postgres?host={folder}&port={server.port}&user=dibs"
        Room(mode, url).run(body)


async def attempt(backend: Any, command: Command, mode: Mode, limit: float = 0.5) -> Reply:
    """One call, with the limit that it has in use."""
    if mode == "blocking":
        replies: Sequence[Reply] = backend.connection.apply([command], limit)
        return replies[0]
    async with asyncio.timeout(limit):
        return await say(backend, command)


@both
def test_a_network_that_swallows_all(mode: Mode, postgres_url: str, proxy: FaultProxy) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await say(backend, acquire("a"))
        proxy.hang()
        began = time.monotonic()
        with pytest.raises((BackendUnavailable, TimeoutError)):
            await attempt(backend, acquire("b", ttl=3.0), mode)
        assert time.monotonic() - began < 2
        proxy.heal()
        status = await attempt(backend, Inspect(b"lock:another"), mode)
        assert isinstance(status, Status)
        assert status.key == b"lock:another"

    Room(mode, proxy.url_for(postgres_url)).run(body)


@both
def test_an_answer_that_is_lost_was_given(mode: Mode, postgres_url: str, proxy: FaultProxy) -> None:
    """The lease was granted, and asking again with the same id finds it."""

    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        proxy.drop_replies()
        command = Acquire(KEY, "a", "owner", 3.0)
        with pytest.raises((BackendUnavailable, TimeoutError)):
            await attempt(backend, command, mode)
        proxy.heal()
        patient = replace(command, ttl=60.0)
        first = await attempt(backend, patient, mode, limit=10)
        assert isinstance(first, Granted)
        again = await attempt(backend, patient, mode, limit=10)
        assert isinstance(again, Granted)
        assert again.token == first.token

    Room(mode, proxy.url_for(postgres_url)).run(body)


@both
@pytest.mark.parametrize("count", [1, 20, 60])
def test_a_reset_in_the_middle_of_an_answer(
    mode: Mode, count: int, postgres_url: str, proxy: FaultProxy
) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await say(backend, acquire("a"))
        proxy.reset_after(count)
        with pytest.raises(BackendUnavailable, match="broke"):
            await say(backend, Inspect(KEY))
        assert proxy.resets == 1
        status = await say(backend, Inspect(b"lock:another"))
        assert isinstance(status, Status)
        assert status.key == b"lock:another"

    Room(mode, proxy.url_for(postgres_url)).run(body)


@both
def test_slow_and_in_pieces(mode: Mode, postgres_url: str, proxy: FaultProxy) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        proxy.throttle(200_000)
        commands: list[Command] = [
            acquire("a", b"lock:%d" % number, note="x" * 500) for number in range(200)
        ]
        assert {type(reply) for reply in await backend.apply(commands)} == {Granted}
        inspected = await backend.apply([Inspect(command.key) for command in commands])
        assert [status.key for status in inspected] == [command.key for command in commands]

    Room(mode, proxy.url_for(postgres_url)).run(body)
