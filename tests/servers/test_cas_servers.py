"""Each store that is reached by compare-and-set starts, does its work and keeps its data."""

from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from tests.servers.binaries import etcd_program
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.nats import NatsServer


def put(server: EtcdServer, key: bytes, value: bytes) -> None:
    server.call("kv/put", {"key": b64encode(key).decode(), "value": b64encode(value).decode()})


def values(server: EtcdServer, key: bytes) -> list[bytes]:
    found = server.call("kv/range", {"key": b64encode(key).decode()})
    return [b64decode(pair["value"]) for pair in found.get("kvs", [])]


@pytest.mark.parametrize("version", ["3.4", "3.5", None])
def test_an_etcd_comes_back_with_its_data(tmp_path: Path, version: str | None) -> None:
    with EtcdServer(tmp_path / "etcd", program=etcd_program(version), fsync=True) as server:
        put(server, b"key", b"value")
        url = server.url
        server.kill()
        server.start()
        assert server.url == url
        assert values(server, b"key") == [b"value"]


def test_an_etcd_with_tls_and_users(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", tls=True) as server:
        assert server.url.startswith("https://")
        server.enable_auth("secret")
        with pytest.raises(OSError, match=r"40[01]"):
            put(server, b"key", b"value")
        login = {"name": "root", "password": "secret"}
        token = server.call("auth/authenticate", login)["token"]
        server.call("kv/put", {"key": "a2V5", "value": "a2V5"}, token=token)


def test_an_etcd_cluster_outlives_its_leader(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        leader = cluster.leader()
        put(leader, b"key", b"one")
        leader.kill()
        put(cluster.leader(), b"key", b"two")
        leader.start()
        assert values(leader, b"key") == [b"two"]


def test_the_shared_etcd(etcd_server: EtcdServer) -> None:
    assert etcd_server.running


def test_a_nats_with_jetstream(nats_server: NatsServer) -> None:
    assert nats_server.info()["jetstream"] is True
