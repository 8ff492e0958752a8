"""What URLs of stores mean, what is refused and how, and that none shows a secret."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from dibs import connect
from dibs.errors import NotConfigured
from dibs.stores.http import url as http_url
from dibs.stores.http.url import FILE_VARIABLE, VARIABLE
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.url import Address
from dibs.stores.redact import redacted
from dibs.stores.redis import url as redis_url
from dibs.stores.registry import store_for
from dibs.stores.sqlite.file import StoreFile
from dibs.stores.temporal import url as temporal_url
from dibs.stores.temporal.ids import QUEUE

SECRET = "s3cr3t"
ODD = "s3cr3t:/et@#?&"
QUOTED = "s3cr3t%3A%2Fet%40%23%3F%26"

DURATION = "must be a duration such as 60s, of less than a day"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine or this user counts."""
    for name in ("ADDRESS", "NAMESPACE", "API_KEY", "PROFILE", "TASK_QUEUE", "TLS"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    for name in (VARIABLE, FILE_VARIABLE, "PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)


def refusal(url: str) -> str:
    with pytest.raises(NotConfigured) as refused:
        store_for(url)
    return str(refused.value)


# ---- options, in every store ----------------------------------------------------------------------

OPTIONS = {
    # each store's URL: an option that takes text, one that takes something else, and what it must be
    "https://h": ("cafile", "insecure", "must be true or false"),
    "sqlite:///x": ("timeout", "unsafe_network_fs", "must be true or false"),
    "redis://h": ("sentinel", "restart_holdoff", DURATION),
    "valkeys://h": ("ssl_certfile", "ssl_cert_reqs", "must be required or none"),
    "postgresql://h/x": ("pooler", "migrate", "must be yes or no"),
    "etcds://h": ("certfile", "skew", DURATION),
    "kubernetes://a": ("context", "skew", DURATION),
    "nats://h": ("bucket", "replicas", "must be a number"),
    "s3://bucket": ("region", "skew", DURATION),
    "temporal://h/x": ("profile", "tls", "must be true or false"),
}


@pytest.mark.parametrize("url", OPTIONS)
def test_options(url: str) -> None:
    option, other, wanted = OPTIONS[url]
    misspelt = refusal(f"{url}?{option[:-1]}={SECRET}").partition(": ")[2]
    assert option[:-1] in misspelt
    assert f"did you mean {option}=?" in misspelt
    assert SECRET not in misspelt
    assert f"{option}= " in refusal(f"{url}?{option}=")
    assert f"{other}= {wanted}" in refusal(f"{url}?{other}=maybe")
    assert f"{other}= {wanted}" in refusal(f"{url}?{other}=")
    value = {"timeout": "3", "pooler": "yes"}.get(option, "a")
    assert f"{option}= is given twice" in refusal(f"{url}?{option}={value}&{option}={value}")
    if not url.startswith("postgresql"):  # libpq has many more
        unknown = refusal(f"{url}?xyz=red")
        assert "there is no option xyz=; known are " in unknown
        assert option in unknown
        assert other in unknown


# ---- what is refused ------------------------------------------------------------------------------


REFUSED = tomllib.loads(Path(__file__).with_name("refused_urls.toml").read_text())


@pytest.mark.parametrize(("url", "reason"), REFUSED.items())
def test_what_is_refused(url: str, reason: str) -> None:
    found = refusal(url)
    assert reason in found
    assert SECRET not in found


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [("redis", "hiredis", "redis"), ("valkeys", "hiredis", "redis"),
     ("postgresql", "psycopg", "postgres"), ("temporal", "temporalio", "temporal")],
)  # fmt: skip
def test_a_missing_extra_is_named(scheme: str, module: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from dibs.sync import connect\n"
        "from dibs.errors import NotConfigured\n"
        f"try: connect('{scheme}://h/0')\n"
        "except NotConfigured as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"pip install 'dibs[{extra}]'" in done.stdout, done.stderr


# ---- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://app:{SECRET}@h/0", "redis://app:***@h/0"),
        (f"redis://:{SECRET}/@{SECRET}@h/0?db=1", "redis://:***@h/0?db=1"),
        (f"redis://h?sentinel=x&sentinel_password={SECRET}&db=1",
         "redis://h?sentinel=x&sentinel_password=***&db=1"),
        (f"postgresql://app@h/x?PASSWORD={SECRET}", "postgresql://app@h/x?PASSWORD=***"),
        (f"postgresql://h/x?sslpassword={SECRET}&sslkey=k", "postgresql://h/x?sslpassword=***&sslkey=k"),
        (f"https://user:{SECRET}@h/base", "https://***@h/base"),
        (f"HTTP://{SECRET}@h", "HTTP://***@h"),
        ("https://h:8443/a@b", "https://h:8443/a@b"),
        ("https://h:8443?key_file=k", "https://h:8443?key_file=k"),
        (f"nats://{SECRET}@h", "nats://***@h"),
        (f"NATS://locks:{SECRET}@h", "NATS://locks:***@h"),
        (f"temporal://{SECRET}@h/x", "temporal://***@h/x"),
        (f"temporal://h/x?api_key={SECRET}", "temporal://h/x?api_key=***"),
        (f"temporal://h/x?key={SECRET}", "temporal://h/x?key=***"),
        ("etcd://a:1,b:2/x", "etcd://a:1,b:2/x"),
        (repr(f"redis://h?sentinel_password={SECRET}"), "'redis://h?sentinel_password=***'"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        f"redis://app:{QUOTED}@h/0",
        f"redis://app:{ODD}@h/0",
        f"redis://app:{SECRET}/et@h:port",
        f"redis://h?sentinel=x&sentinel_password={ODD}",
        f"postgresql://app:{SECRET}@db/x",
        f"postgresql://:{SECRET}@db/x",
        f"postgresql://app:{SECRET}@a,b:5433/x?sslmode=require",
        f"postgresql://app@db/x?password={SECRET}",
        f"postgresql://app@db/x?sslmode=require&sslpassword={SECRET}&sslkey=k",
        *(f"postgresql://app:{SECRET}{mark}{SECRET}@db/x" for mark in "/@?#:"),
        f"postgresql://app:%zz{SECRET}@db/x",
        f"postgresql://app:[{SECRET}@db/x",
        f"https://{SECRET}@h",
        f"https://:{SECRET}@h",
        f"https://user:{SECRET}@h",
        f"nats://{SECRET}@h",
        f"temporal://host/x?api_key={SECRET}&task_queue=q",
    ],
)
def test_neither_a_store_nor_an_error_shows_a_secret(url: str) -> None:
    try:
        store = store_for(url)
    except NotConfigured as error:
        text = f"{error} {error!r} {error.__cause__!r}"
    else:
        text = f"{store.url} {store!r} {connect(url)!r}"
    assert SECRET not in text


# ---- what is understood ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("redis://", [("localhost", 6379, "")]),
        ("redis://db", [("db", 6379, "")]),
        ("valkey://db:7000/3", [("db", 7000, "")]),
        ("redis://[::1]:7000", [("::1", 7000, "")]),
        ("redis://10.0.0.1:7000?db=2", [("10.0.0.1", 7000, "")]),
        ("redis:///run/redis/my%20redis.sock", [("", 0, "/run/redis/my redis.sock")]),
        ("redis://:pw@/run/redis.sock?db=2", [("", 0, "/run/redis.sock")]),
        ("redis://a,b:7000?cluster=true", [("a", 6379, ""), ("b", 7000, "")]),
        ("redis://a,b:7000/1?sentinel=main", [("a", 26379, ""), ("b", 7000, "")]),
    ],
)
def test_where_redis_is(url: str, endpoints: list[tuple[str, int, str]]) -> None:
    found = redis_url.read_url(url).endpoints
    assert found == tuple(redis_url.Endpoint(*each) for each in endpoints)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("redis://h", {"db": 0, "login": ("", ""), "topology": "server"}),
        ("redis://h/4", {"db": 4}),
        ("redis://h?db=5", {"db": 5}),
        ("redis:///6", {"db": 6}),
        (f"redis://:{QUOTED}@h", {"login": ("", ODD)}),
        (f"redis://app:{QUOTED}@h", {"login": ("app", ODD)}),
        ("redis://app:a:b@c@h", {"login": ("app", "a:b@c")}),
        ("redis://h?protocol=3&restart_holdoff=60s", {"holdoff": 60.0}),
        ("redis://h?socket_timeout=2&socket_connect_timeout=500ms",
         {"timeout": 2.0, "connect_timeout": 0.5}),
        ("redis://h?cluster=true", {"topology": "cluster"}),
        ("redis://h?cluster=false", {"topology": "server"}),
        ("redis://h?sentinel=main&sentinel_username=u&sentinel_password=p",
         {"topology": "sentinel", "service": "main", "sentinel_login": ("u", "p")}),
        # options of redis-py that make no difference
        ("redis://h/1?max_connections=9&health_check_interval=30&decode_responses=True", {"db": 1}),
    ],
)  # fmt: skip
def test_settings_of_redis(url: str, settings: dict[str, Any]) -> None:
    found = redis_url.read_url(url)
    assert {name: getattr(found, name) for name in settings} == settings


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "POSTGRESQL"])
def test_every_spelling_of_postgresql(scheme: str) -> None:
    store = store_for(f"{scheme}://app@db.example/leases")
    assert isinstance(store, PostgresStore)
    assert store.url == "postgresql://app@db.example/leases"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://app:pw@db:6000/leases?sslmode=require&application_name=billing",
         {"user": "app", "password": "pw", "host": "db", "port": "6000", "dbname": "leases",
          "sslmode": "require", "application_name": "billing"}),
        ("postgresql:///leases?host=/run/pg", {"dbname": "leases", "host": "/run/pg"}),
        ("postgresql://%2Frun%2Fpg/leases", {"host": "/run/pg"}),
        ("postgresql://",
         {"connect_timeout": "10", "client_encoding": "UTF8", "fallback_application_name": "dibs"}),
        ("postgresql://a,b:6000/x",
         {"host": "a,b", "port": ",6000", "target_session_attrs": "read-write"}),
        ("postgresql://a,b/x?target_session_attrs=primary", {"target_session_attrs": "primary"}),
        ("postgresql://db/x?connect_timeout=3&keepalives_idle=1", {"connect_timeout": "3"}),
        ("postgresql://db/x?service=mine", {"service": "mine"}),
        ("postgresql://db/x?options=-c%20work_mem%3D1MB", {"options": "-c work_mem=1MB"}),
    ],
)  # fmt: skip
def test_libpq_gets_all_its_settings(url: str, found: dict[str, str]) -> None:
    settings = conninfo_to_dict(Address(url).conninfo)
    assert found.items() <= {key: str(value) for key, value in settings.items()}.items()


def test_libpq_does_not_get_those_of_dibs() -> None:
    address = Address("postgresql://db/x?pooler=yes&sslmode=require&migrate=no")
    assert (address.pooler, address.may_migrate) == ("yes", False)
    assert {"pooler", "migrate"} & set(conninfo_to_dict(address.conninfo)) == set()
    default = Address("postgresql://db/x")
    assert (default.pooler, default.may_migrate) == ("auto", True)
    assert "target_session_attrs" not in conninfo_to_dict(default.conninfo)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://db:6000/leases", "db:6000/leases"),
        ("postgresql://app@db/", "db:5432/app"),
        ("postgresql://a:1,b:2/x", "a:1,b:2/x"),
        ("postgresql://a,b/x?port=7000", "a:7000,b:7000/x"),
        ("postgresql:///x?host=/run/pg", "/run/pg:5432/x"),
    ],
)
def test_the_place_that_messages_name(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Address(url).place == place
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGPORT", "7777")
    assert Address("postgresql:///x").place == "elsewhere:7777/x"


@pytest.mark.parametrize(
    ("url", "host", "port", "base", "authority", "tls"),
    [
        ("https://locks.example", "locks.example", 443, "", "locks.example", True),
        ("https://locks.example/", "locks.example", 443, "", "locks.example", True),
        ("https://h:8443/a/b/", "h", 8443, "/a/b", "h:8443", True),
        ("https://[fd00::1]:8443", "fd00::1", 8443, "", "[fd00::1]:8443", True),
        ("http://127.0.0.1:5327", "127.0.0.1", 5327, "", "127.0.0.1:5327", False),
        ("http://127.8.0.1", "127.8.0.1", 80, "", "127.8.0.1", False),
        ("http://[::1]:80", "::1", 80, "", "[::1]", False),
        ("http://localhost:1", "localhost", 1, "", "localhost:1", False),
        ("http://h:1?insecure=true", "h", 1, "", "h:1", False),
    ],
)
def test_where_a_service_is(
    url: str, host: str, port: int, base: str, authority: str, tls: bool
) -> None:
    found = http_url.read_url(url)
    assert (found.host, found.port, found.base) == (host, port, base)
    assert found.authority == authority
    assert (found.tls is not None) == tls


def key_of(url: str) -> str | None:
    found = http_url.read_url(url).find_key()
    return None if found is None else found.secret


def test_where_an_api_key_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text("from-the-file\n")
    other.write_text("from-the-other")
    assert key_of("https://h") is None
    monkeypatch.setenv(FILE_VARIABLE, str(other))
    assert key_of("https://h") == "from-the-other"
    monkeypatch.setenv(VARIABLE, "from-the-variable")
    assert key_of("https://h") == "from-the-variable"
    assert key_of(f"https://h?key_file={file}") == "from-the-file"
    for login in ("a%2Fb%40c", ":a%2Fb%40c", "user:a%2Fb%40c"):
        assert key_of(f"https://{login}@h") == "a/b@c"


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "schlüssel", "a\0b"])
def test_a_file_without_an_api_key(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(NotConfigured, match=r"is empty|is no API key") as refused:
        key_of(f"https://h?key_file={file}")
    assert not text or text not in str(refused.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(NotConfigured, match="it is no text"):
        key_of(f"https://h?key_file={file}")
    with pytest.raises(NotConfigured, match="can't be read: No such file"):
        key_of(f"https://h?key_file={tmp_path}/nothing")


def test_a_ca_that_can_not_be_read(tmp_path: Path) -> None:
    tls = http_url.read_url(f"https://h?cafile={tmp_path}/nothing").tls
    assert tls is not None
    with pytest.raises(NotConfigured, match=f"can't be set up with {tmp_path}/nothing"):
        tls()


def test_files_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert StoreFile("sqlite:///a/b.db").path == str(tmp_path / "a/b.db")
    assert StoreFile("sqlite:////a/b.db").path == "/a/b.db"
    assert StoreFile("sqlite:///~/b.db").path == "/home/me/b.db"
    assert StoreFile("sqlite:////a%20b/%3F%25.db").path == "/a b/?%.db"
    assert os.fsencode(StoreFile("sqlite:////%ff").path) == b"/\xff"
    assert StoreFile("sqlite:///x").timeout == 10
    assert StoreFile("sqlite:///x?timeout=2.5").timeout == 2.5
    assert StoreFile("sqlite:///x?unsafe_network_fs=1").unsafe_network_fs


# ---- Temporal, with the settings of its own tools -------------------------------------------------

PROFILES = """
[profile.default]
address = "from-file:7233"
namespace = "filed"
api_key = "of-the-file"

[profile.prod]
address = "prod.example:7233"
namespace = "production"
"""


def target(url: str) -> Any:
    return temporal_url.read_url(url).target()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("temporal://", "localhost:7233/default"),
        ("temporal://example", "example:7233/default"),
        ("temporal://example:7300/team", "example:7300/team"),
        ("temporal://[::1]:7300/a.b-c", "[::1]:7300/a.b-c"),
        ("temporal:///team", "localhost:7233/team"),
        ("temporal://example/a%20b", "example:7233/a b"),
    ],
)
def test_where_temporal_is(url: str, place: str) -> None:
    assert str(target(url)) == place


def test_the_environment_of_temporal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert temporal_url.read_url("temporal://").task_queue == QUEUE
    for name, value in {
        "ADDRESS": "env:7233",
        "NAMESPACE": "env-space",
        "API_KEY": SECRET,
        "TASK_QUEUE": "ours",
        "TLS_SERVER_NAME": "t.example",
        "TLS_SERVER_CA_CERT_DATA": "ca",
    }.items():
        monkeypatch.setenv(f"TEMPORAL_{name}", value)
    assert str(target("temporal://")) == "env:7233/env-space"
    found = target("temporal://host/own")
    assert str(found) == "host:7233/own"
    assert SECRET not in repr(found)
    assert found.options["api_key"] == SECRET
    tls = found.options["tls"]
    assert (tls.server_root_ca_cert, tls.domain) == (b"ca", "t.example")
    assert target("temporal://host/own?tls=false").options["tls"] is False
    assert temporal_url.read_url("temporal://").task_queue == "ours"
    assert temporal_url.read_url("temporal://?task_queue=mine").task_queue == "mine"


def test_profiles_of_temporal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporal.toml").write_text(PROFILES)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    assert str(target("temporal://")) == "from-file:7233/filed"
    assert str(target("temporal://?profile=prod")) == "prod.example:7233/production"
    assert str(target("temporal:///other?profile=prod")) == "prod.example:7233/other"
    assert target("temporal://").options["api_key"] == "of-the-file"
    assert "api_key" not in target("temporal://elsewhere/x").options, "it goes nowhere else"
    named = target("temporal://elsewhere/x?profile=default")
    assert named.options["api_key"] == "of-the-file"
    with pytest.raises(NotConfigured, match="temporal config list"):
        target("temporal://?profile=nope")


@pytest.mark.parametrize(
    ("url", "promised"),
    [
        ("postgresql://db/x", {"cluster", "durable", "fenced", "notifies", "clock", "power-loss"}),
        ("temporal://h/x", {"cluster", "durable", "fenced", "notifies", "clock", "power-loss"}),
    ],
)
def test_what_a_store_promises(url: str, promised: set[str]) -> None:
    assert promised <= store_for(url).capabilities.names()
