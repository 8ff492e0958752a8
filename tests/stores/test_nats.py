"""NATS as a store: its faults, its users, and buckets that leases could vanish from."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig, StorageType

import dibs
from dibs.errors import BackendUnavailable, Corrupt, Forbidden, NotConfigured
from dibs.model import Acquire, Granted, Inspect, Refused
from dibs.runtime.batcher import apply_over
from dibs.stores.cas.store import AsyncCasConnection
from dibs.stores.redact import redacted
from dibs.stores.registry import store_for
from dibs.sync import connect
from dibs.testing import FaultProxy, ManualClock
from tests.servers.certificates import key_of, self_signed
from tests.servers.nats import NatsServer
from tests.servers.ports import free_port
from tests.stores.cas_processes import contend, seconds_until_a_lone_try_succeeds


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    """The shared NATS, with a bucket of its own."""
    return f"{nats_server.url}?bucket={token_hex(6)}"


@asynccontextmanager
async def own_client(server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    try:
        yield client
    finally:
        await client.close()


def use(url: str) -> None:
    with connect(url) as client:
        client.lock("a").acquire(wait=1).release()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nats://", "looks like"),
        ("nats://h/path", "looks like"),
        ("nats://h?bucket=a.b", "letters, digits"),
        ("nats://h?keyfile=k", "needs certfile"),
    ],
)
def test_a_url_that_cannot_be_read(url: str, told: str) -> None:
    with pytest.raises(NotConfigured, match=told):
        store_for(url)


def test_no_secret_is_shown() -> None:
    assert store_for("nats://locks:secret@h").url == "nats://locks:***@h"
    assert store_for("nats://secret@h").url == "nats://***@h"
    assert redacted("NATS://secret@h") == "NATS://***@h"


def test_nobody_listens() -> None:
    with pytest.raises(BackendUnavailable, match="check that the NATS server runs"):
        use(f"nats://127.0.0.1:{free_port()}")


def test_another_server_is_asked_if_one_is_gone(nats_server: NatsServer) -> None:
    with connect(f"nats://127.0.0.1:{free_port()},127.0.0.1:{nats_server.port}") as client:
        client.lock(token_hex(6)).acquire().release()


async def test_who_waits_is_notified_by_another_process(nats_url: str) -> None:
    """Both stores are objects of their own, as in two processes."""
    async with dibs.connect(nats_url) as one, dibs.connect(nats_url) as two:
        held = await one.lock("a", ttl=60).acquire()
        waiting = asyncio.ensure_future(two.lock("a", ttl=60).acquire())
        while not (await one.status("a")).waiting:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        released = time.monotonic()
        await held.release()
        await (await waiting).release()
        assert time.monotonic() - released < 0.4  # it would ask by itself after 0.67 s


def test_a_killed_server_comes_back_with_its_leases(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        with connect(server.url, call_timeout=1) as client:
            held = client.lock("a", ttl=60).acquire()
            server.kill()
            began = time.monotonic()
            with pytest.raises(BackendUnavailable):
                client.lock("b").acquire(wait=1)
            assert time.monotonic() - began < 5
            server.start()
            assert client.lock("a").try_acquire() is None
            held.renew()
            held.release()
            with client.lock("a") as lease:
                assert lease.token > held.token


async def test_a_wait_goes_on_after_the_server_was_restarted(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        async with dibs.connect(server.url) as one, dibs.connect(server.url) as two:
            held = await one.lock("a", ttl=60).acquire()
            waiting = asyncio.ensure_future(two.lock("a", ttl=60).acquire())
            while not (await one.status("a")).waiting:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await held.release()
            lease = await asyncio.wait_for(waiting, 10)
            await lease.release()


def test_a_connection_that_hangs_is_left(nats_server: NatsServer, nats_url: str) -> None:
    with FaultProxy("127.0.0.1", nats_server.port) as proxy:
        with connect(proxy.url_for(nats_url), call_timeout=2) as client:
            held = client.lock("a", ttl=10).acquire()
            proxy.hang()
            began = time.monotonic()
            while time.monotonic() < began + 6:
                with pytest.raises(BackendUnavailable):
                    client.lock("b").acquire(wait=0)
            assert proxy.accepted > 2  # it did not stay on the first
            proxy.heal()
            began = time.monotonic()
            with client.lock("b", wait=5):
                assert time.monotonic() - began < 2
            assert not held.wait_lost(5)  # until 11 s after its beginning
            held.release()


def test_a_server_that_hangs_leaves_time_for_another(
    nats_server: NatsServer, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.stores.nats.store.shuffle", list)  # the first one is asked first
    with FaultProxy("127.0.0.1", nats_server.port) as proxy:
        proxy.hang()
        real = f"127.0.0.1:{nats_server.port}"
        began = time.monotonic()
        with connect(nats_url.replace(real, f"127.0.0.1:{proxy.port},{real}")) as client:
            client.lock("a").acquire(wait=10).release()
        assert time.monotonic() - began < 4
        assert proxy.accepted == 1


async def test_impatient_callers_leave_the_connection_to_others(
    nats_server: NatsServer, nats_url: str
) -> None:
    """Their limits pass before the slow answers come, which do come."""
    with FaultProxy("127.0.0.1", nats_server.port) as proxy:
        connection = store_for(proxy.url_for(nats_url)).async_connection()
        assert isinstance(connection, AsyncCasConnection)
        await connection.open()
        proxy.delay(0.3)
        command = Inspect(b"lock:a")
        patient = asyncio.ensure_future(connection.apply_within([command], 5))
        for _ in range(15):
            with pytest.raises(BackendUnavailable):
                await connection.apply_within([command], 0.1)
        await patient
        await connection.apply_within([command], 5)
        assert proxy.accepted == 1
        await connection.close()


USERS = """
authorization { users = [
  {user: locks, password: secret}
  {user: reader, password: secret, permissions: {publish: ["$JS.API.STREAM.INFO.>"]}}
  {user: deaf, password: secret, permissions: {publish: ["$JS.API.>"]}}
] }
"""


def test_users(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config=USERS) as server:
        host = f"127.0.0.1:{server.port}"
        for login in ("", "locks:wrong@", "nobody@"):
            with pytest.raises(Forbidden, match="The user needs to publish") as refused:
                use(f"nats://{login}{host}")
            assert "wrong" not in str(refused.value)
        with pytest.raises(Forbidden, match=r"stream\.create"):
            use(f"nats://reader:secret@{host}")
        use(f"nats://locks:secret@{host}")
        began = time.monotonic()
        with connect(f"nats://deaf:secret@{host}") as client:
            with pytest.raises(Forbidden, match=r"\$kv\.dibs"):
                client.lock("a").acquire()
        assert time.monotonic() - began < 4  # nobody waited for an answer


def test_a_token(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config="authorization { token: s3cret }") as server:
        use(f"nats://s3cret@127.0.0.1:{server.port}")
        with pytest.raises(Forbidden):
            use(f"nats://other@127.0.0.1:{server.port}")


def test_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "server.pem")
    tls = f"tls {{ cert_file: '{certificate}', key_file: '{key_of(certificate)}' }}"
    with NatsServer(tmp_path / "nats", config=tls) as server:
        use(f"{server.url}?cafile={certificate}")
        with pytest.raises(BackendUnavailable, match="certificate verify failed"):
            use(f"{server.url}?tls=on")
    with pytest.raises(NotConfigured, match="certificate file"):
        use(f"nats://127.0.0.1:1?cafile={tmp_path}/missing")


def test_a_password_is_never_sent_in_the_clear_if_tls_is_asked_for(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config=USERS) as server:
        with pytest.raises(NotConfigured, match="offers no TLS"):
            use(f"nats://locks:secret@127.0.0.1:{server.port}?tls=on")


def test_a_server_without_jetstream(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", jetstream=False) as server:
        with pytest.raises(NotConfigured, match="--jetstream"):
            use(server.url)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (KeyValueConfig("", storage=StorageType.MEMORY), "in memory"),
        (KeyValueConfig("", ttl=60), "its TTL"),
    ],
)
async def test_a_bucket_that_leases_could_vanish_from(
    nats_server: NatsServer, config: KeyValueConfig, told: str
) -> None:
    config.bucket = token_hex(6)
    async with own_client(nats_server) as client:
        await client.jetstream().create_key_value(config)
    with pytest.raises(NotConfigured, match=told):
        async with dibs.connect(f"{nats_server.url}?bucket={config.bucket}") as user:
            await user.lock("a").acquire()


async def test_what_others_do_in_the_bucket(nats_server: NatsServer, nats_url: str) -> None:
    """A key that was deleted begins anew; a strange value is told; a bucket that is gone is made anew."""
    bucket = nats_url.partition("bucket=")[2]
    async with own_client(nats_server) as other, dibs.connect(nats_url) as client:
        await (await client.lock("a.b/c").acquire()).release()
        keys = await other.jetstream().key_value(bucket)
        assert await keys.keys() == ["lock=3Aa=2Eb=2Fc"]
        await keys.delete("lock=3Aa=2Eb=2Fc")
        last = await client.lock("a.b/c").acquire()
        await last.release()
        await keys.put("lock=3Astrange", b"what?")
        with pytest.raises(Corrupt, match="no book of Dibs"):
            await client.lock("strange").acquire()
        async with client.lock("well"):
            assert [each.key async for each in client.list()] == [b"lock:well"]
        await other.jetstream().delete_key_value(bucket)
        lease = await client.lock("a.b/c").acquire()
        assert lease.token > last.token
        await lease.release()


async def test_a_connection_leaves_no_task_behind(nats_url: str) -> None:
    before = asyncio.all_tasks()
    async with dibs.connect(nats_url) as client:
        await (await client.lock("a").acquire()).release()
    assert asyncio.all_tasks() == before


def test_a_loop_may_end_without_a_close(nats_url: str, recwarn: pytest.WarningsRecorder) -> None:
    async def leave() -> None:
        store = store_for(nats_url)
        connection = store.async_connection()
        await connection.open()
        kept.append((store, connection))

    kept: list[object] = []
    asyncio.run(leave())
    assert [str(each.message) for each in recwarn] == []


def test_a_child_connects_for_itself(nats_url: str) -> None:
    with connect(nats_url) as client:
        held = client.lock("a", ttl=60).acquire()
        child = os.fork()
        if not child:
            try:
                os._exit(0 if client.lock("a").try_acquire() is None else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        held.renew()
        held.release()


def test_the_doctor(nats_url: str) -> None:
    connection = store_for(nats_url).blocking_connection()
    connection.open(10)
    found = {finding.about: finding for finding in connection.examine()}
    connection.close()
    assert re.fullmatch(r"NATS \d+\.\d+\.\d+\S*", found["server"].told)
    assert found["encryption"].told == "none needed: the server is on this machine"
    assert (found["replicas"].level, found["disk"].level, found["dates"].level) == (
        "note",
        "note",
        "ok",
    )


def test_the_doctor_tells_that_replicas_are_for_a_new_bucket(nats_url: str) -> None:
    use(nats_url)
    connection = store_for(f"{nats_url}&replicas=3").blocking_connection()
    connection.open(10)
    found = {finding.about: finding for finding in connection.examine()}["replicas"]
    connection.close()
    assert found.level == "warning"
    assert "replicas=3 in the URL has no effect" in found.told
    assert "--replicas 3" in found.advice


def test_a_lone_try_gets_a_dead_holders_lease(nats_url: str) -> None:
    assert seconds_until_a_lone_try_succeeds(f"{nats_url}&skew=1", 2, patience=20) < 2 + 1 + 3


@pytest.mark.multiprocess
async def test_a_clock_that_stood_still_dates_no_lease_too_early(nats_url: str) -> None:
    """As in a virtual machine that was paused: a lone try elsewhere would take the lease at once."""
    url = f"{nats_url}&skew=0.2"
    paused = store_for(url, clock=ManualClock()).async_connection()
    other = store_for(url).async_connection()
    await apply_over(paused, [Inspect(b"lock:a")])  # now it knows the server's time
    await asyncio.sleep(2.5)
    (granted,) = await apply_over(paused, [Acquire(b"lock:a", "held", "o", 1.0)])
    (tried,) = await apply_over(other, [Acquire(b"lock:a", "tried", "o", 1.0)])
    assert isinstance(granted, Granted)
    assert isinstance(tried, Refused)
    for connection in (paused, other):
        await connection.close()


def test_processes_take_turns(nats_url: str, tmp_path: Path) -> None:
    assert sum(contend(nats_url, tmp_path, seconds=4)) > 20
