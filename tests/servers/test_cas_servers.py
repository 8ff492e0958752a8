"""Each server for compare-and-set stores starts, works and keeps its data."""

import json
import subprocess
from base64 import b64decode, b64encode
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.servers.binaries import etcd_program
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.kube import READER, STRANGER, KubeServer
from tests.servers.nats import NatsServer
from tests.servers.s3 import S3Server


def put(server: EtcdServer, key: bytes, value: bytes) -> None:
    server.call("kv/put", {"key": b64encode(key).decode(), "value": b64encode(value).decode()})


def values(server: EtcdServer, key: bytes) -> list[bytes]:
    found = server.call("kv/range", {"key": b64encode(key).decode()})
    return [b64decode(pair["value"]) for pair in found.get("kvs", [])]


@pytest.mark.parametrize("version", ["3.4", "3.5", None])
def test_etcd_keeps_its_data(tmp_path: Path, version: str | None) -> None:
    with EtcdServer(tmp_path / "etcd", program=etcd_program(version), fsync=True) as server:
        put(server, b"key", b"value")
        url = server.url
        server.kill()
        server.start()
        assert server.url == url
        assert values(server, b"key") == [b"value"]


def test_etcd_with_tls_and_users(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", tls=True) as server:
        assert server.url.startswith("https://")
        server.enable_auth("secret")
        with pytest.raises(OSError, match=r"40[01]"):
            put(server, b"key", b"value")
        login = {"name": "root", "password": "secret"}
        token = server.call("auth/authenticate", login)["token"]
        server.call("kv/put", {"key": "a2V5", "value": "a2V5"}, token=token)


def test_etcd_cluster_survives_its_leader(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        leader = cluster.leader()
        put(leader, b"key", b"one")
        leader.kill()
        put(cluster.leader(), b"key", b"two")
        leader.start()
        assert values(leader, b"key") == [b"two"]


def test_the_shared_etcd(etcd_server: EtcdServer) -> None:
    assert etcd_server.running


LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def lease(name: str, seconds: int = 3) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"leaseDurationSeconds": seconds}}


def test_kube_validates_leases(kube_server: KubeServer) -> None:
    assert kube_server.request("POST", LEASES, lease("one")).status == HTTPStatus.CREATED
    assert kube_server.request("POST", LEASES, lease("one")).status == HTTPStatus.CONFLICT
    refused = kube_server.request("POST", LEASES, lease("two", seconds=0))
    assert refused.status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert refused.body["reason"] == "Invalid"


def test_kube_rejects_an_old_version(kube_server: KubeServer) -> None:
    made = kube_server.request("POST", LEASES, lease("versions")).body
    again = kube_server.request("PUT", f"{LEASES}/versions", made | {"spec": {}})
    assert again.status == HTTPStatus.OK
    late = kube_server.request("PUT", f"{LEASES}/versions", made)
    assert late.status == HTTPStatus.CONFLICT


@pytest.mark.parametrize(
    ("token", "reads", "writes"),
    [("", 401, 401), ("nobody", 401, 401), (STRANGER, 403, 403), (READER, 200, 403)],
)
@pytest.mark.parametrize("secure", [False, True])
def test_kube_users(
    kube_server: KubeServer, token: str, reads: int, writes: int, *, secure: bool
) -> None:
    got = kube_server.request("GET", LEASES, token=token, secure=secure)
    assert got.status == reads
    made = kube_server.request("POST", LEASES, lease("users"), token=token, secure=secure)
    assert made.status == writes


def test_kube_keeps_its_data(tmp_path: Path) -> None:
    with KubeServer(tmp_path / "kube", fsync=True) as server:
        made = server.request("POST", LEASES, lease("kept"), secure=True)
        urls, ca = (server.url, server.https_url, server.etcd_url), server.ca.read_bytes()
        server.kill()
        server.start()
        assert (server.url, server.https_url, server.etcd_url) == urls
        assert server.ca.read_bytes() == ca
        assert server.request("GET", f"{LEASES}/kept", secure=True).body == made.body


def candidate(server: KubeServer, identity: str) -> "subprocess.Popen[str]":
    options = {
        "url": server.url,
        "lease": "elected",
        "identity": identity,
        "lease-duration": "2s",
        "renew-deadline": "1s",
        "retry-period": "100ms",
    }
    flags = [word for name, value in options.items() for word in (f"-{name}", value)]
    return subprocess.Popen(
        [server.program.path, "elect", *flags, "-release-on-cancel"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def time_of(event: str, process: "subprocess.Popen[str]") -> int:
    """Wait for the event, and return its time by `time.monotonic_ns`."""
    assert process.stdout is not None
    found = map(json.loads, process.stdout)
    return next(int(line["monotonic_ns"]) for line in found if line["event"] == event)


def test_candidates_of_client_go_take_turns(kube_server: KubeServer) -> None:
    with candidate(kube_server, "first") as first:  # it ends with its standard input
        time_of("started", first)
        with candidate(kube_server, "second") as second:
            time_of("leader", second)
            first.terminate()
            assert time_of("stopped", first) < time_of("started", second)


def test_nats_has_jetstream(nats_server: NatsServer) -> None:
    assert nats_server.info()["jetstream"] is True


def test_s3_requires_a_signature(s3_server: S3Server) -> None:
    with pytest.raises(HTTPError, match="403") as refused:
        urlopen(f"{s3_server.url}/{s3_server.bucket}/key")
    with refused.value as answer:
        assert b"AccessDenied" in answer.read()


def test_s3_restarts_on_its_port(tmp_path: Path) -> None:
    with S3Server(tmp_path / "s3") as server:
        url = server.url
        server.kill()
        server.start()
        assert server.url == url
