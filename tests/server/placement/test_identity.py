"""Addresses of stores: the same text for one store, another for each other, and nothing secret."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs.errors import NotConfigured
from dibs.server.placement.identity import is_found_with, store_address
from dibs.server.placement.joining import OwnPlacement, joined, own_placement
from dibs.server.placement.rules import Place, PlacementSettings
from dibs.stores.kubernetes import access
from tests.server.world import Patch


@pytest.fixture(autouse=True)
def pod(monkeypatch: Patch, tmp_path: Path) -> Path:
    """The folder of a service account, as in a pod. Nothing is set for libpq, nor for AWS but a region."""
    for each in (name for name in os.environ if name.startswith(("PG", "AWS_"))):
        monkeypatch.delenv(each)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    for name, text in (("token", "one"), ("ca.crt", "one"), ("namespace", "locks")):
        (tmp_path / name).write_text(text)
    return tmp_path


def is_of_machine(url: str) -> bool:
    return store_address(url, "m") != store_address(url, "n")


HOSTS = "postgresql:///db?host=a,b&hostaddr=192.0.2.1,192.0.2.2&port=1,2"

SAME = [
    ("redis://h", "rediss://me:secret@H:6379/0?ssl_cert_reqs=none&socket_timeout=3"),
    ("redis://b:2,a:1?cluster=true", "redis://a:1,b:2?cluster=true"),
    ("postgres://u:p@h/db", "postgresql://v@H:5432/db?sslmode=require&pooler=yes"),
    (HOSTS, "postgresql:///db?host=b,a&hostaddr=192.0.2.2,192.0.2.1&port=2,1"),
    ("sqlite:////tmp/x/../y.db", "sqlite:////tmp/y.db?timeout=3"),
    ("temporal://h:7233/ns?tls=true", "temporal://h:7233/ns"),
    ("etcd://u:p@h1,h2:2379/x?skew=2", "etcds://h1,h2:2379/x?cafile=ca.pem"),
    ("s3://b", "s3://b/dibs?region=us-east-1&skew=3"),
    ("kubernetes://", "kubernetes://locks"),
]
OTHERS = [
    ("redis://h/0", "redis://h/1"),
    ("redis://h:26379?sentinel=a", "redis://h:26379?sentinel=b"),
    ("postgresql://u@h", "postgresql://v@h"),
    ("postgresql://h/db", "postgresql://h/db?options=-csearch_path%3Dx"),
    (HOSTS, "postgresql:///db?host=b,a&hostaddr=192.0.2.1,192.0.2.2&port=2,1"),
    ("temporal://h/ns?task_queue=a", "temporal://h/ns"),
]
HERE_ONLY = [
    "sqlite:////tmp/a.db",
    "redis://[::1]:6379/0",
    "redis:///run/a.sock",
    "postgresql://h,127.0.0.1/db",
    "temporal://localhost:7233/ns",
    "s3://b?endpoint=http://127.0.0.1:9000",
]
EVERYWHERE = ["redis://[fe80::2]:1", "postgresql://db.example/locks", "kubernetes://", "s3://b"]


def test_which_urls_lead_to_one_store_to_two_and_to_one_on_each_machine() -> None:
    assert [pair for pair in SAME if store_address(pair[0]) != store_address(pair[1])] == []
    assert [pair for pair in OTHERS if store_address(pair[0]) == store_address(pair[1])] == []
    assert [url for url in HERE_ONLY if not is_of_machine(url)] == []
    assert [url for url in EVERYWHERE if is_of_machine(url)] == []


def test_no_secret_is_written_down() -> None:
    for url in (
        "redis://me:hunter2@h/0?sentinel_password=hunter2&sentinel=s",
        "postgresql://me:hunter2@h/db?password=hunter2",
        "temporal://h/ns?api_key=hunter2",
        "other://me:hunter2@h/x?token=hunter2",
    ):
        assert "hunter2" not in store_address(url)
        assert "me" not in store_address(url).replace("temporal", "")


def test_servers_that_share_records_may_share_a_local_store() -> None:
    file, redis = "sqlite:////var/lib/leases.db", "redis://localhost"
    for records in ("sqlite:////var/lib/records.db", "memory://records"):
        assert is_found_with(records, file)
    for records in (redis, "postgresql://db.example/records"):  # may lead to a shared one
        assert not is_found_with(records, file)
    assert is_found_with("redis://me:p@localhost:6379/0", redis)
    assert not is_found_with("redis://localhost/1", redis)


def test_was_takes_an_address_as_it_is_shown_or_a_url() -> None:
    recorded = "sqlite:///tmp/a.db on m"
    for was in (recorded, "sqlite:////tmp/a.db"):
        before = OwnPlacement(Place("a", "", ""), recorded)
        now = PlacementSettings(name="a", url="postgresql://new.example/db", was=was)
        own = own_placement(now, machine="m")
        stores = joined(joined(None, (before,), 3.0, {}), (own,), 3.0, {}).places[0].stores
        assert stores == (recorded, own.address)


def refused_on_another_server(url: str, elsewhere: Callable[[], object]) -> None:
    """The same URL leads to another store there, and a server there does not join."""
    place = PlacementSettings(name="a", url=url)
    one, again = (own_placement(place, machine="m") for _ in range(2))
    elsewhere()
    two = own_placement(place, machine="m")
    recorded = joined(None, (one,), 3.0, {})
    assert joined(recorded, (again,), 3.0, {}) == recorded
    with pytest.raises(NotConfigured, match="locks would be held in both"):
        joined(recorded, (two,), 3.0, {})


@pytest.mark.parametrize(
    ("url", "variable", "other"),
    [
        ("postgresql://?sslmode=require", "PGHOST", "db2.example"),
        ("postgresql://?sslmode=require", "PGHOSTADDR", "192.0.2.2"),
        ("postgresql://?sslmode=require", "PGOPTIONS", "-csearch_path=two"),
        ("s3://b", "AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000"),
        ("temporal://", "TEMPORAL_ADDRESS", "other.example:7233"),
        ("temporal://h:7233", "TEMPORAL_NAMESPACE", "other"),
    ],
)
def test_the_environment_counts(monkeypatch: Patch, url: str, variable: str, other: str) -> None:
    refused_on_another_server(url, lambda: monkeypatch.setenv(variable, other))


def test_a_url_counts_for_more_than_the_environment(monkeypatch: Patch, tmp_path: Path) -> None:
    whole = "postgresql://me@h:5433/db"
    said = store_address(whole)
    for name in ("HOST", "DATABASE", "USER"):
        monkeypatch.setenv(f"PG{name}", "other")
    monkeypatch.setenv("PGPORT", "5433")
    assert store_address(whole) == said
    assert store_address("postgresql://me@h") == "postgresql://h:5433/other"
    file = tmp_path / "services"
    file.write_text("[locks]\nhost=db1.example\nport=5432\ndbname=locks\n")
    for name, value in (("SERVICEFILE", str(file)), ("SERVICE", "locks")):
        monkeypatch.setenv(f"PG{name}", value)
    assert store_address("postgresql://") == "postgresql://db1.example:5432/locks"
    assert store_address(whole) == said
    with pytest.raises(NotConfigured, match="service="):
        store_address("postgresql:///locks?service=locks")


CLUSTER = """
current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "%s", certificate-authority-data: %s}}]
"""


def test_another_cluster_is_another_store(monkeypatch: Patch, pod: Path) -> None:
    refused_on_another_server("kubernetes://", lambda: (pod / "ca.crt").write_text("two"))
    file = pod / "kubeconfig"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setenv("KUBECONFIG", str(file))

    def connect_to(server: str, authority: str) -> None:
        file.write_text(CLUSTER % (server, authority))

    for url in ("kubernetes://locks", f"kubernetes://locks?kubeconfig={file}"):
        connect_to("https://one.example", "b25l")
        refused_on_another_server(url, lambda: connect_to("https://one.example", "dHdv"))
        refused_on_another_server(url, lambda: connect_to("https://two.example", "dHdv"))
        connect_to("https://127.0.0.1:6443", "b25l")
        assert is_of_machine(url)
