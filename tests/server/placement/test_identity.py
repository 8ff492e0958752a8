"""Addresses of stores: the same text for one store, another for each other, and nothing secret."""

import os
import re
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
    """Whether the same URL leads to another store on another machine."""
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
]


@pytest.mark.parametrize("url", HERE_ONLY)
@pytest.mark.usefixtures("variables")
def test_what_is_another_store_on_each_machine(url: str) -> None:
    one, two = (
        own_placement(PlacementSettings(name="a", url=url), machine=each) for each in ("m", "n")
    )
    assert one.address != two.address
    recorded = joined(None, (one,), FRESH, {})
    with pytest.raises(NotConfigured, match=r"another one on each machine.* was = '.* on m'"):
        joined(recorded, (two,), FRESH, {})
    assert store_address(url) == one.address.removesuffix(" on m")


@pytest.mark.parametrize(
    "url",
    ["redis://h", "redis://[fe80::2]:1", "postgresql:///d?host=h", "temporal://h:7233/localhost"],
)
def test_what_is_the_same_store_from_all_machines(url: str) -> None:
    assert store_address(url, "m") == store_address(url)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """None of libpq's is set."""
    for each in (name for name in os.environ if name.startswith("PG")):
        monkeypatch.delenv(each)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "one", "other"),
    [
        ("PGHOST", "db1.example", "db2.example"),
        ("PGHOST", "db1.example,db3.example", "db2.example,db3.example"),
        ("PGHOST", "/run/one", "/run/two"),
        ("PGHOST", "/run/one", "/run/ONE"),
        ("PGHOSTADDR", "192.0.2.1", "192.0.2.2"),
        ("PGPORT", "5432", "5433"),
        ("PGDATABASE", "one", "two"),
        ("PGUSER", "one", "two"),
        ("PGOPTIONS", "-csearch_path=one", "-csearch_path=two"),
    ],
)
def test_what_libpq_takes_from_the_environment_leads_elsewhere(
    variables: pytest.MonkeyPatch, variable: str, one: str, other: str
) -> None:
    """The same URL at two servers, whose surroundings differ."""
    url = "postgresql://?sslmode=require"
    found: list[OwnPlacement] = []
    for value in (one, other):
        variables.setenv(variable, value)
        found.append(own_placement(PlacementSettings(name="default", url=url), machine="m"))
    assert found[0].address != found[1].address
    with pytest.raises(NotConfigured, match=re.escape(found[1].address)):
        joined(joined(None, (found[0],), FRESH, {}), (found[1],), FRESH, {})


def test_a_url_says_more_than_the_environment(variables: pytest.MonkeyPatch) -> None:
    said = {url: store_address(url) for url in ("postgresql://me@h", "postgresql://me@h:5433/db")}
    for name in ("HOST", "DATABASE", "USER"):
        variables.setenv(f"PG{name}", "other")
    variables.setenv("PGPORT", "5433")
    assert store_address("postgresql://me@h:5433/db") == said["postgresql://me@h:5433/db"]
    assert (
        store_address("postgresql://me@h")
        == "postgresql://h:5433/other"
        != said["postgresql://me@h"]
    )
    assert store_address("postgresql://") == "postgresql://other:5433/other"


def test_services_of_libpq(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a service is stands in a file that each machine has for itself."""
    file = tmp_path / "services"
    file.write_text("[locks]\nhost=db1.example\nport=5433\ndbname=locks\n")
    variables.setenv("PGSERVICEFILE", str(file))
    with pytest.raises(NotConfigured, match="service="):
        store_address("postgresql:///locks?service=locks")
    variables.setenv("PGSERVICE", "locks")
    assert store_address("postgresql://") == "postgresql://db1.example:5433/locks"
    assert store_address("postgresql://h/db") == "postgresql://h:5433/db"


def test_an_address_of_the_network_behind_a_hosts_name(variables: pytest.MonkeyPatch) -> None:
    url = "postgresql://db.example/locks"
    assert not _is_of_machine(url)
    variables.setenv("PGHOSTADDR", "127.0.0.1")
    assert _is_of_machine(url)
    assert not _is_of_machine(f"{url}?hostaddr=192.0.2.1")


@pytest.mark.parametrize(
    "was", ["postgresql://h:5432/db?c00df69aece4", "postgresql:///db on m", "postgresql://h/a b"]
)
def test_where_it_was_may_be_said_as_it_is_written_down(was: str) -> None:
    now = PlacementSettings(name="a", url="postgresql://new.example/db", was=was)
    before, own = OwnPlacement(Place("a", "", ""), was), own_placement(now, machine="m")
    assert joined(joined(None, (before,), FRESH, {}), (own,), FRESH, {}).places[0].stores == (
        was,
        own.address,
    )


@pytest.mark.parametrize(
    ("records", "is_same"),
    [
        ("sqlite:////var/lib/leases.db", True),
        ("sqlite:////var/lib/records.db", True),
        ("memory://records", True),
        ("redis://localhost", False),  # it may be a way to one that is shared
        ("postgresql://127.0.0.1/records", False),
        ("postgresql://db.example/records", False),
    ],
)
def test_whoever_reads_the_records_finds_the_same_file(records: str, is_same: bool) -> None:
    assert is_found_with(records, "sqlite:////var/lib/leases.db") == is_same


def test_a_store_that_the_records_lie_in_is_the_same_for_all() -> None:
    assert is_found_with("redis://me:p@localhost:6379/0", "redis://localhost")
    assert not is_found_with("redis://localhost/1", "redis://localhost")


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


def refused_on_another_server(url: str, elsewhere: Callable[[], None]) -> None:
    """The same URL leads to another store there, and a server there does not join."""
    one = own_placement(PlacementSettings(name="a", url=url), machine="m")
    again = own_placement(PlacementSettings(name="a", url=url), machine="m")
    elsewhere()
    two = own_placement(PlacementSettings(name="a", url=url), machine="m")
    recorded = joined(None, (one,), FRESH, {})
    assert joined(recorded, (again,), FRESH, {}) == recorded
    with pytest.raises(NotConfigured, match="locks would be held in both"):
        joined(recorded, (two,), FRESH, {})


CLUSTER = """
current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "%s", certificate-authority-data: %s}}]
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("https://one.example:6443", "b25l"), ("https://two.example:6443", "b25l")),
        (("https://10.96.0.1", "b25l"), ("https://10.96.0.1", "dHdv")),
    ],
)
@pytest.mark.parametrize("url", ["kubernetes://locks", "kubernetes://locks?kubeconfig={file}"])
def test_another_cluster_is_another_store(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    url: str,
    one: tuple[str, str],
    other: tuple[str, str],
) -> None:
    file = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(file))
    file.write_text(CLUSTER % one)
    refused_on_another_server(url.format(file=file), lambda: void(file.write_text(CLUSTER % other)))


def test_a_pod_of_another_cluster_finds_another_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("one")
    (tmp_path / "namespace").write_text("locks")
    assert store_address("kubernetes://") == store_address("kubernetes:")
    assert store_address("kubernetes://") == store_address("kubernetes://locks")
    assert not _is_of_machine("kubernetes://")
    refused_on_another_server(
        "kubernetes://", lambda: void((tmp_path / "ca.crt").write_text("two"))
    )


def test_a_cluster_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(CLUSTER % ("https://127.0.0.1:6443", "b25l"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert _is_of_machine("kubernetes://")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing of AWS is set but a region."""
    for each in (name for name in os.environ if name.startswith("AWS_")):
        monkeypatch.delenv(each)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    return monkeypatch


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_s3_from_the_environment(aws: pytest.MonkeyPatch, variable: str) -> None:
    refused_on_another_server("s3://b", lambda: aws.setenv(variable, "http://minio.example:9000"))
    assert not _is_of_machine("s3://b")
    aws.setenv(variable, "http://127.0.0.1:9000")
    assert _is_of_machine("s3://b")


def test_buckets(aws: pytest.MonkeyPatch) -> None:
    assert _is_of_machine("s3://b?endpoint=http://127.0.0.1:9000")
    assert not _is_of_machine("s3://b?endpoint=http://minio.example:9000")
    same = {store_address(f"s3://b{more}") for more in ("", "/dibs", "?region=us-east-1&skew=3")}
    assert same == {"s3://b/dibs"}
    others = ("s3://c", "s3://b/x", "s3://b?endpoint=http://m:9000", "s3://b?region=cn-north-1")
    assert len({*same, *map(store_address, others)}) == 5


def test_an_address_of_temporal_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "one.example:7233")
    refused_on_another_server(
        "temporal://", lambda: monkeypatch.setenv("TEMPORAL_ADDRESS", "two.example:7233")
    )
    refused_on_another_server(
        "temporal://h:7233", lambda: monkeypatch.setenv("TEMPORAL_NAMESPACE", "other")
    )


def void(_: object) -> None:
    """For what returns something that nobody needs."""
