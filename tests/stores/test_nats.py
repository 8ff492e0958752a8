"""NATS as a store: its faults, its users, and buckets that leases could vanish from."""

import gc
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
from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.sync import connect
from dibs.testing import FaultProxy
from tests.servers.certificates import key_of, self_signed
from tests.servers.nats import NatsServer
from tests.servers.ports import free_port
from tests.stores.sides import findings, use


@asynccontextmanager
async def own_client(server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    try:
        yield client
    finally:
        await client.close()


def test_another_server_is_asked_if_one_is_gone_or_hangs(
    nats_server: NatsServer, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.stores.nats.store.shuffle", list)  # the first one is asked first
    monkeypatch.setattr("dibs.stores.nats.store.TIMEOUT_OF_EACH", 0.5)
    real = f"127.0.0.1:{nats_server.port}"
    with FaultProxy("127.0.0.1", nats_server.port) as proxy:
        proxy.hang()
        gone, hanging = f"127.0.0.1:{free_port()}", f"127.0.0.1:{proxy.port}"
        began = time.monotonic()
        use(nats_url.replace(real, f"{gone},{hanging},{real}"), wait=10)
        assert time.monotonic() - began < 8
        assert proxy.accepted, "it was asked first"


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
                use(f"nats://{login}{host}", wait=10)
            assert "wrong" not in str(refused.value)
        with pytest.raises(Forbidden, match=r"stream\.create"):
            use(f"nats://reader:secret@{host}", wait=10)
        use(f"nats://locks:secret@{host}", wait=10)
        began = time.monotonic()
        with connect(f"nats://deaf:secret@{host}") as client:
            with pytest.raises(Forbidden, match=r"\$kv\.dibs"):
                client.lock("a").acquire()
        assert time.monotonic() - began < 4  # nobody waited for an answer
        with pytest.raises(NotConfigured, match="offers no TLS"):  # no password goes in the clear
            use(f"nats://locks:secret@{host}?tls=on", wait=10)


def test_a_token(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config="authorization { token: s3cret }") as server:
        use(f"nats://s3cret@127.0.0.1:{server.port}", wait=10)
        with pytest.raises(Forbidden):
            use(f"nats://other@127.0.0.1:{server.port}", wait=10)


def test_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate = self_signed(tmp_path / "server.pem")
    tls = f"tls {{ cert_file: '{certificate}', key_file: '{key_of(certificate)}' }}"
    with NatsServer(tmp_path / "nats", config=tls) as server:
        use(f"{server.url}?cafile={certificate}", wait=10)
        with pytest.raises(BackendUnavailable, match="certificate verify failed"):
            use(f"{server.url}?tls=on")
    with pytest.raises(NotConfigured, match="certificate file"):
        use(f"nats://127.0.0.1:1?cafile={tmp_path}/missing", wait=10)
    gc.collect()
    assert not [each for each in caplog.messages if "never retrieved" in each]


def test_a_server_without_jetstream(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", jetstream=False) as server:
        with pytest.raises(NotConfigured, match="--jetstream"):
            use(server.url, wait=10)


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


async def test_a_bucket_that_is_gone_is_made_anew(nats_server: NatsServer, nats_url: str) -> None:
    bucket = nats_url.partition("bucket=")[2]
    async with own_client(nats_server) as other, dibs.connect(nats_url) as client:
        last = await client.lock("a.b/c").acquire()
        await last.release()
        keys = await other.jetstream().key_value(bucket)
        assert await keys.keys() == ["lock=3Aa=2Eb=2Fc"]
        await other.jetstream().delete_key_value(bucket)
        async with client.lock("a.b/c") as lease:
            assert lease.token > last.token


def test_doctor_knows_how_many_copies_there_are(nats_url: str) -> None:
    found = findings(nats_url)
    assert [found[about].level for about in ("replicas", "disk")] == ["note", "note"]
    wished = findings(f"{nats_url}&replicas=3")["replicas"]  # but the bucket is there by now
    assert wished.level == "warning"
    assert "replicas=3 in the URL has no effect" in wished.told
    assert "--replicas 3" in wished.advice
