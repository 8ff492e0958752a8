"""What a connection to Redis costs, what it hears, and how it reads what servers answer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Failed, Granted, Inspect, Refused, Status
from dibs.stores.redis import ledger
from dibs.stores.redis.errors import RIGHTS
from dibs.testing.proxy import FaultProxy
from tests.pages import blocks
from tests.servers.binaries import Program, redis_programs
from tests.servers.certificates import key_of, self_signed
from tests.servers.redis import RedisServer
from tests.stores.redis.counting import calls, reset
from tests.stores.sides import (
    KEY,
    Side,
    acquire,
    both_sides,
    granted,
    in_tasks,
    in_threads,
    release,
)


@in_threads
async def test_nothing_is_granted_for_a_while_after_it_came_back_empty(
    side: Side, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as server:
        connection = await side.open(f"{server.url}?restart_holdoff=600ms")
        for name in "ab":  # a new server is an empty one, too
            (reply,) = await side.again(connection, acquire(name))
            assert isinstance(reply, Refused)
            assert reply.reason == "closed"
            assert 0 < reply.recheck_in <= 0.6
            await side.pause(reply.recheck_in + 0.01)
            granted((await connection.apply([acquire(name)]))[0])
            server.kill()
            server.start()


@both_sides
async def test_a_subscription_that_has_gone_silent_is_found_out(
    side: Side, redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("aio", "threads"):
        monkeypatch.setattr(f"dibs.stores.redis.{module}.PING_EVERY", 0.2)
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        backend = await side.open(proxy.url_for(redis_url))
        assert list(await backend.notifications(0.6)) == []  # pings are answered
        proxy.hang()
        await side.broken(backend, within=20.0)


@in_threads
async def test_a_server_without_memory_grants_nothing(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    """It runs no Function either, so leases are looked at by the script."""
    backend = await side.open(redis_url)
    await backend.apply([acquire("a")])
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(BackendUnavailable, match=r"out of memory.*maxmemory"):
                await backend.apply([acquire("b", key=b"lock:b")])
            (status,) = await backend.apply([Inspect(KEY)])
        finally:
            client.config_set("maxmemory", 0)
    assert isinstance(status, Status)
    assert len(status.holders) == 1
    granted((await backend.apply([acquire("b", key=b"lock:b")]))[0])


async def refused(side: Side, url: str, kind: type[DibsError], told: str) -> None:
    with pytest.raises(kind, match=told):
        backend = await side.open(url, listen=False)
        await backend.apply([acquire(key=b"lock:a"), acquire(key=b"lock:b")])


@in_tasks
async def test_what_no_server_can_do_is_reported(
    side: Side, tmp_path: Path, redis_server: RedisServer
) -> None:
    place = f"redis://127.0.0.1:{redis_server.port}"
    await refused(side, f"{place}/99", NotConfigured, "no such database")
    await refused(side, f"{place}?cluster=true", NotConfigured, "it is no Cluster")
    extra = [f'rename-command {name} ""' for name in ("FCALL", "EVALSHA", "EVAL")]
    with RedisServer(tmp_path / "old", extra=extra) as server:
        await refused(side, server.url, IncompatibleVersion, r"Redis 6\.2")
    with RedisServer(tmp_path / "node", extra=["cluster-enabled yes"]) as server:
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        await refused(side, server.url, NotConfigured, r"add \?cluster=true")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web_server:
        port = web_server.sockets[0].getsockname()[1]
        await refused(side, f"redis://127.0.0.1:{port}", BackendUnavailable, "can't be reached")


@both_sides
async def test_a_unix_socket(side: Side, tmp_path: Path) -> None:
    with RedisServer(tmp_path, unix=True) as server:
        url = f"redis://{server.unix_path}?db=1"
        await works(side, url)
    with pytest.raises(BackendUnavailable, match=r"redis\.sock can't be reached"):
        await side.open(url)


@in_threads
async def test_pages_that_follow_need_no_search_and_skip_strange_keys(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    backend = await side.open(redis_url)
    theirs = (b"epoch", b"{}", b"{lock:x", b"{a}b}", b"{lock:x}hold", b"{lock:%zz}", b"{lock:%7d}")
    with redis_server.client() as client:
        for name in (b"lock:x", b"\xff", b"dibs:", *(b"dibs:" + each for each in theirs)):
            client.set(name, b"theirs")
    keys = sorted([b"lock:}{%7D\xff\0", *(b"lock:n/%d" % number for number in range(40))])
    await backend.apply([acquire(key=key) for key in keys])
    reset(redis_server)
    found: list[bytes] = []
    cursor: bytes | None = b""
    while cursor is not None:
        page = await backend.scan(b"", cursor or None, 5)
        found += [status.key for status in page.items]
        cursor = page.cursor
    assert found == keys
    assert calls(redis_server)["scan"] == 1


# ---- logins --------------------------------------------------------------------------------------


PASSWORD = "s3:cr/et@#?&"
QUOTED = "s3%3Acr%2Fet%40%23%3F%26"

FUNCTIONS, SCRIPTS = "+fcall +function|load", "+evalsha +script|load"


def user(name: str, rights: str) -> str:
    return f"{name} on >{PASSWORD} -@all {rights.replace('NAME', name)}"


USERS = [
    user("app", RIGHTS),
    user("other", RIGHTS),
    user("mine-only", RIGHTS.replace("~dibs:*", "~dibs:{lock:mine/*")),
    user("no-subscribe", RIGHTS.replace("+subscribe ", "")),
    user("no-keys", RIGHTS.replace("~dibs:*", "")),
    user("no-ledger", RIGHTS.replace(FUNCTIONS, "")),
    user("by-script", RIGHTS.replace(FUNCTIONS, SCRIPTS)),
    user("no-fcall", RIGHTS.replace(FUNCTIONS, f"+function|load {SCRIPTS}")),
    user("no-load", RIGHTS.replace(FUNCTIONS, f"+fcall {SCRIPTS}")),
    user("fcall-only", RIGHTS.replace(FUNCTIONS, "+fcall")),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder = tmp_path_factory.mktemp("guarded")
    with RedisServer(folder, requirepass=PASSWORD, users=USERS) as server:
        yield server


@pytest.fixture
def server(guarded: RedisServer) -> RedisServer:
    """A server with a password and users, emptied."""
    with guarded.client() as client:
        client.flushall()
        client.function_flush()
        client.script_flush()
    return guarded


def url_of(server: RedisServer, name: str) -> str:
    return f"redis://{name}:{QUOTED}@127.0.0.1:{server.port}"


async def works(side: Side, url: str) -> None:
    """A notification, and a list."""
    waiter, other = await side.open(url), await side.open(url)
    await side.hand_over(waiter, other)
    await waiter.scan(b"lock:", None, 10)


@both_sides
async def test_passwords(side: Side, server: RedisServer, redis_server: RedisServer) -> None:
    host = f"127.0.0.1:{server.port}"
    await works(side, f"redis://:{QUOTED}@{host}")
    for url, told in {
        f"redis://{host}": "Redis requires a password. Add it to the URL.*NOAUTH",
        f"redis://:s3wrong@{host}": "rejects.*WRONGPASS",
        f"redis://nobody:{QUOTED}@{host}": "rejects",
        f"redis://:s3cret@127.0.0.1:{redis_server.port}": "it has none",
    }.items():
        with pytest.raises(Forbidden, match=told) as refusal:
            await side.open(url)
        assert "s3" not in f"{refusal.value} {refusal.value!r} {refusal.value.__cause__!r}"


@in_tasks
async def test_a_user_with_the_rights_of_the_page(side: Side, server: RedisServer) -> None:
    """They suffice, and another user can neither read this one's notifications nor forge any."""
    assert blocks("redis.md", "text")[0].split() == RIGHTS.split()
    await works(side, url_of(server, "app"))
    backend = await side.open(url_of(server, "app"))
    login = {"port": server.port, "username": "other", "password": PASSWORD}
    with redis.Redis(**login, protocol=2) as other:  # type: ignore[arg-type]
        with pytest.raises(redis.exceptions.NoPermissionError):
            other.publish(backend.inbox, b"")
        for pattern in ("dibs:*", "dibs:inbox:*", "dibs:inbox:app:*"):
            with other.pubsub() as channel, pytest.raises(redis.exceptions.NoPermissionError):
                channel.psubscribe(pattern)
                channel.get_message(timeout=10)


@in_tasks
async def test_users_who_lack_a_right(side: Side, server: RedisServer) -> None:
    """Without one to Functions, the ledger runs as a script."""
    for name in ("no-ledger", "no-subscribe", "no-keys"):
        with pytest.raises(Forbidden, match=r"ACL does not allow it.*NOPERM"):
            backend = await side.open(url_of(server, name))
            await backend.apply([acquire()])
    for name in ("by-script", "no-fcall", "no-load"):
        await cycle(side, url_of(server, name))
        reset(server)
        await cycle(side, url_of(server, name))
        assert calls(server)["evalsha"] >= 1


@both_sides
async def test_keys_that_a_user_may_not_touch_cost_the_others_nothing(
    side: Side, server: RedisServer
) -> None:
    backend = await side.open(url_of(server, "mine-only"))
    mine = [acquire(key=b"lock:mine/%d" % number) for number in range(3)]
    replies = await backend.apply([*mine[:2], acquire(key=b"lock:theirs"), mine[2]])
    assert [type(reply) for reply in replies] == [Granted, Granted, Failed, Granted]
    assert replies[2].reason == "forbidden"
    assert "NOPERM" in replies[2].detail
    with pytest.raises(Forbidden):
        await backend.apply([acquire(key=b"lock:theirs")])


# ---- TLS ------------------------------------------------------------------------------------------


@both_sides
async def test_tls(side: Side, tmp_path: Path, redis_server: RedisServer) -> None:
    with RedisServer(tmp_path, tls=True) as server:
        base = f"rediss://localhost:{server.port}/0"
        trusting = f"{base}?ssl_ca_certs={server.certificate}"
        backend = await side.open(trusting)
        notes = [letter * 30_000 for letter in "abcdefgh"]
        await backend.apply([acquire(note, capacity=8, note=note) for note in notes])
        (status,) = await backend.apply([Inspect(KEY)])
        assert [holder.note for holder in status.holders] == notes
        await side.open(f"{base}?ssl_cert_reqs=none")
        await side.open(f"{trusting}&ssl_check_hostname=false".replace("localhost", "127.0.0.1"))
        soon = "socket_connect_timeout=0.5s"
        for url, told in {
            base: "name the CA with ssl_ca_certs",
            f"redis://localhost:{server.port}?{soon}": "does this port speak TLS",
            f"rediss://localhost:{redis_server.port}?{soon}": "does this port speak TLS",
        }.items():
            with pytest.raises(BackendUnavailable, match=told):
                await side.open(url)
        with pytest.raises(NotConfigured, match=r"TLS can't be set up with .*nowhere\.pem"):
            await side.open(f"{base}?ssl_ca_certs={tmp_path}/nowhere.pem")

        mine = self_signed(tmp_path / "client.pem")
        with server.client() as client:
            client.config_set("tls-ca-cert-file", str(mine))
            client.config_set("tls-auth-clients", "yes")
        await side.open(f"{trusting}&ssl_certfile={mine}&ssl_keyfile={key_of(mine)}")
        with pytest.raises(BackendUnavailable):
            await side.open(trusting)


# ---- Functions and scripts ------------------------------------------------------------------------


async def cycle(side: Side, url: str) -> None:
    """Two holders, one after the other."""
    backend = await side.open(url)
    granted((await backend.apply([acquire("a"), acquire("b", queue=True)]))[0])
    await backend.apply([release("a")])
    granted((await backend.apply([acquire("b", queue=True)]))[0])
    await backend.apply([release("b")])


@pytest.mark.parametrize("program", redis_programs(), ids=lambda program: program.label)
@in_tasks
async def test_every_server_applies_batches(side: Side, tmp_path: Path, program: Program) -> None:
    with RedisServer(tmp_path, program=program) as server:
        await cycle(side, server.url)
        has_functions = program.name == "valkey" or program.version >= (7,)
        found = calls(server)
        assert ("fcall" in found, "evalsha" in found) == (has_functions, not has_functions)


@in_tasks
async def test_an_administrator_may_load_the_library_beside_another(
    side: Side, server: RedisServer
) -> None:
    with server.client() as client:
        client.function_load(ledger.LIBRARY)
        client.function_load(ledger.LIBRARY.replace(ledger.FUNCTION[1], b"dibs_1_0"))
    await cycle(side, url_of(server, "fcall-only"))
