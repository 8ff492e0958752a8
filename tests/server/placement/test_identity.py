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

FRESH = 3.0


def _is_of_machine(url: str) -> bool:
    return store_address(url, "m") != store_address(url, "n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h", "rediss://me:secret@H:6379/0?ssl_cert_reqs=none&socket_timeout=3"),
        ("redis://h/2", "valkey://:p?w/@h:6379?db=2"),
        ("redis://b:2,a:1?cluster=true", "redis://a:1,b:2?cluster=true"),
        ("postgres://u:p@h/db", "postgresql://v@h:5432/db?sslmode=require&pooler=yes"),
        ("postgresql://u:p@h", "postgresql+psycopg://h/u"),
        ("sqlite:////tmp/x/../y.db", "sqlite:////tmp/y.db?timeout=3"),
        ("temporal://h:7233/ns?tls=true", "temporal://h:7233/ns"),
        ("postgresql://H:5433/db", "postgresql:///db?host=h&port=5433"),
        ("etcd://u:p@h1,h2:2379/x?skew=2", "etcds://h1,h2:2379/x?cafile=ca.pem"),
        ("postgresql://h/d%62", "postgresql://h?dbname=db"),
        ("postgresql://b:2,a:1/db", "postgresql:///db?host=a,b&port=1,2"),
        ("postgresql://[::1]/db", "postgresql://[::1]:5432/db"),
        (
            "postgresql:///db?host=a,b&hostaddr=192.0.2.1,192.0.2.2&port=1,2",
            "postgresql:///db?host=b,a&hostaddr=192.0.2.2,192.0.2.1&port=2,1",
        ),
    ],
)
def test_ways_to_one_store(one: str, other: str) -> None:
    assert store_address(one) == store_address(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h/0", "redis://h/1"),
        ("redis://h", "redis://i"),
        ("redis://h:26379?sentinel=a", "redis://h:26379?sentinel=b"),
        ("redis:///run/a.sock", "redis:///run/b.sock"),
        ("postgresql://u@h", "postgresql://v@h"),
        ("postgresql://h/db", "postgresql://h/db?options=-csearch_path%3Dx"),
        ("temporal://h/ns?task_queue=a", "temporal://h/ns"),
        ("memory://A", "memory://a"),
        (
            "postgresql:///db?host=a,b&hostaddr=192.0.2.1,192.0.2.2&port=1,2",
            "postgresql:///db?host=b,a&hostaddr=192.0.2.1,192.0.2.2&port=2,1",
        ),
    ],
)
def test_two_stores(one: str, other: str) -> None:
    assert store_address(one) != store_address(other)


HERE_ONLY = [
    "sqlite:////tmp/a.db",
    "redis://localhost",
    "redis://me:p@127.0.0.2:1/3",
    "redis://[::1]:6379/0",
    "redis://:6379",
    "redis://0.0.0.0:6379",
    "redis:///run/a.sock",
    "postgresql:///db",
    "postgresql://LOCALHOST:5432/db",
    "postgresql://h,127.0.0.1/db",
    "postgresql:///db?host=/run/postgresql",
    "postgresql://%2Frun%2Fpostgresql/db",
    "postgresql:///db?host=@abstract",
    "postgresql://[::1]/db",
    "postgresql:///db?hostaddr=127.0.0.1",
    "temporal://localhost:7233/ns",
    "s3://b?endpoint=http://127.0.0.1:9000",
]

EVERYWHERE = [
    *("redis://h", "redis://[fe80::2]:1", "postgresql:///d?host=h", "temporal://h:7233/localhost"),
    *(
        "postgresql://db.example/locks",
        "kubernetes://",
        "s3://b",
        "s3://b?endpoint=http://m.example:9000",
    ),
]


@pytest.mark.usefixtures("pod", "aws", "libpq")
def test_which_urls_lead_to_another_store_on_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [url for url in HERE_ONLY if not _is_of_machine(url)] == []
    assert [url for url in EVERYWHERE if _is_of_machine(url)] == []
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    assert _is_of_machine("postgresql://db.example/locks")
    assert not _is_of_machine("postgresql://db.example/locks?hostaddr=192.0.2.1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    assert _is_of_machine("s3://b")


@pytest.mark.parametrize(
    "was",
    [
        *("sqlite:///tmp/a.db on m", "sqlite:////tmp/a.db"),
        *("postgresql://h:5432/db?c00df69aece4", "postgresql:///db on m", "postgresql://h/a b"),
    ],
)
def test_was_takes_an_address_as_it_is_shown_or_a_url(was: str) -> None:
    recorded = "sqlite:///tmp/a.db on m" if was.startswith("sqlite") else was
    before = OwnPlacement(Place("a", "", ""), recorded)
    now = PlacementSettings(name="a", url="postgresql://new.example/db", was=was)
    own = own_placement(now, machine="m")
    stores = joined(joined(None, (before,), FRESH, {}), (own,), FRESH, {}).places[0].stores
    assert stores == (recorded, own.address)


@pytest.fixture
def libpq(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """None of libpq's is set."""
    for each in (name for name in os.environ if name.startswith("PG")):
        monkeypatch.delenv(each)
    return monkeypatch


def test_a_url_counts_for_more_than_the_environment(libpq: pytest.MonkeyPatch) -> None:
    said = {url: store_address(url) for url in ("postgresql://me@h", "postgresql://me@h:5433/db")}
    for name in ("HOST", "DATABASE", "USER"):
        libpq.setenv(f"PG{name}", "other")
    libpq.setenv("PGPORT", "5433")
    assert store_address("postgresql://me@h:5433/db") == said["postgresql://me@h:5433/db"]
    assert (
        store_address("postgresql://me@h")
        == "postgresql://h:5433/other"
        != said["postgresql://me@h"]
    )
    assert store_address("postgresql://") == "postgresql://other:5433/other"


def test_services_of_libpq(libpq: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "services"
    file.write_text("[locks]\nhost=db1.example\nport=5433\ndbname=locks\n")
    libpq.setenv("PGSERVICEFILE", str(file))
    with pytest.raises(NotConfigured, match="service="):
        store_address("postgresql:///locks?service=locks")
    libpq.setenv("PGSERVICE", "locks")
    assert store_address("postgresql://") == "postgresql://db1.example:5433/locks"
    assert store_address("postgresql://h/db") == "postgresql://h:5433/db"


@pytest.mark.parametrize(
    ("records", "leases", "is_same"),
    [
        ("sqlite:////var/lib/records.db", "sqlite:////var/lib/leases.db", True),
        ("memory://records", "sqlite:////var/lib/leases.db", True),
        ("redis://localhost", "sqlite:////var/lib/leases.db", False),  # may lead to a shared one
        ("postgresql://db.example/records", "sqlite:////var/lib/leases.db", False),
        ("redis://me:p@localhost:6379/0", "redis://localhost", True),
        ("redis://localhost/1", "redis://localhost", False),
    ],
)
def test_servers_that_share_records_may_share_a_local_store(
    records: str, leases: str, is_same: bool
) -> None:
    assert is_found_with(records, leases) == is_same


def test_no_secret_is_written_down() -> None:
    for url in (
        "redis://me:hunter2@h/0?sentinel_password=hunter2&sentinel=s",
        "postgresql://me:hunter2@h/db?password=hunter2",
        "temporal://h/ns?api_key=hunter2",
        "other://me:hunter2@h/x?token=hunter2",
    ):
        assert "hunter2" not in store_address(url)
        assert "me" not in store_address(url).replace("temporal", "")


# ---- what the surroundings of a server supply -------------------------------------------------------


def refused_on_another_server(url: str, elsewhere: Callable[[], object]) -> None:
    """The same URL leads to another store there, and a server there does not join."""
    place = PlacementSettings(name="a", url=url)
    one, again = (own_placement(place, machine="m") for _ in range(2))
    elsewhere()
    two = own_placement(place, machine="m")
    recorded = joined(None, (one,), FRESH, {})
    assert joined(recorded, (again,), FRESH, {}) == recorded
    with pytest.raises(NotConfigured, match="locks would be held in both"):
        joined(recorded, (two,), FRESH, {})


@pytest.mark.parametrize(
    ("variable", "one", "other"),
    [
        ("PGHOST", "db1.example", "db2.example"),
        ("PGHOST", "db1.example,db3.example", "db2.example,db3.example"),
        ("PGHOST", "/run/one", "/run/ONE"),
        ("PGHOSTADDR", "192.0.2.1", "192.0.2.2"),
        ("PGPORT", "5432", "5433"),
        ("PGDATABASE", "one", "two"),
        ("PGUSER", "one", "two"),
        ("PGOPTIONS", "-csearch_path=one", "-csearch_path=two"),
    ],
)
def test_variables_of_libpq(libpq: pytest.MonkeyPatch, variable: str, one: str, other: str) -> None:
    libpq.setenv(variable, one)
    refused_on_another_server(
        "postgresql://?sslmode=require", lambda: libpq.setenv(variable, other)
    )


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("s3://b", "AWS_ENDPOINT_URL"),
        ("s3://b", "AWS_ENDPOINT_URL_S3"),
        ("temporal://", "TEMPORAL_ADDRESS"),
        ("temporal://h:7233", "TEMPORAL_NAMESPACE"),
    ],
)
def test_variables_of_other_stores(aws: pytest.MonkeyPatch, url: str, variable: str) -> None:
    refused_on_another_server(url, lambda: aws.setenv(variable, "http://other.example:9000"))


CLUSTER = """
current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "%s", certificate-authority-data: %s}}]
"""


@pytest.mark.parametrize(
    "other", [("https://two.example", "b25l"), ("https://one.example", "dHdv")]
)
@pytest.mark.parametrize("url", ["kubernetes://locks", "kubernetes://locks?kubeconfig={file}"])
def test_another_cluster_is_another_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, other: tuple[str, str]
) -> None:
    file = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(file))
    file.write_text(CLUSTER % ("https://one.example", "b25l"))
    refused_on_another_server(url.format(file=file), lambda: file.write_text(CLUSTER % other))
    file.write_text(CLUSTER % ("https://127.0.0.1:6443", "b25l"))
    assert _is_of_machine(url.format(file=file))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a service account, as in a pod."""
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    for name, text in (("token", "one"), ("ca.crt", "one"), ("namespace", "locks")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_pod_of_another_cluster_finds_another_store(pod: Path) -> None:
    for same in ("kubernetes:", "kubernetes://locks"):
        assert store_address("kubernetes://") == store_address(same)
    refused_on_another_server("kubernetes://", lambda: (pod / "ca.crt").write_text("two"))


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing of AWS is set but a region."""
    for each in (name for name in os.environ if name.startswith("AWS_")):
        monkeypatch.delenv(each)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    return monkeypatch


def test_buckets(aws: pytest.MonkeyPatch) -> None:
    same = {store_address(f"s3://b{more}") for more in ("", "/dibs", "?region=us-east-1&skew=3")}
    assert same == {"s3://b/dibs"}
    others = ("s3://c", "s3://b/x", "s3://b?endpoint=http://m:9000", "s3://b?region=cn-north-1")
    assert len({*same, *map(store_address, others)}) == 5
