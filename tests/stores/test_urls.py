"""What URLs of stores mean, what is refused and how, and that none shows a secret."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from dibs import connect
from dibs.errors import NotConfigured
from dibs.stores.http import url as http_url
from dibs.stores.http.url import FILE_VARIABLE, VARIABLE
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


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine or this user counts."""
    for name in ("ADDRESS", "NAMESPACE", "API_KEY", "PROFILE", "TASK_QUEUE", "TLS"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    for name in (VARIABLE, FILE_VARIABLE, "PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)


REFUSED = tomllib.loads(Path(__file__).with_name("refused_urls.toml").read_text())


def test_what_is_refused() -> None:
    for url, reason in REFUSED.items():
        with pytest.raises(NotConfigured) as refused:
            store_for(url)
        assert reason in str(refused.value), url
        assert SECRET not in str(refused.value), url


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('hiredis', 'psycopg', 'temporalio')))\n"
        "from dibs.sync import connect\n"
        "from dibs.errors import NotConfigured\n"
        "for scheme in ('redis', 'valkeys', 'postgresql', 'temporal'):\n"
        "    try: connect(f'{scheme}://h/0')\n"
        "    except NotConfigured as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = re.findall(r"pip install 'dibs\[(\w+)\]'", done.stdout)
    assert found == ["redis", "redis", "postgres", "temporal"], done.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://app:{QUOTED}@h/0", "redis://app:***@h/0"),
        (f"redis://app:{ODD}@h/0", "redis://app:***@h/0"),
        (f"redis://:{SECRET}/@{SECRET}@h/0?db=1", "redis://:***@h/0?db=1"),
        (f"redis://app:{SECRET}/et@h:port", "redis://app:***@h:port"),
        (f"redis://h?sentinel=x&sentinel_password={SECRET}&db=1",
         "redis://h?sentinel=x&sentinel_password=***&db=1"),
        (f"postgresql://h/x?PASSWORD={SECRET}&sslkey=k", "postgresql://h/x?PASSWORD=***&sslkey=k"),
        (f"postgresql://app:{SECRET}@a,b:5433/x?sslpassword={SECRET}",
         "postgresql://app:***@a,b:5433/x?sslpassword=***"),
        *((f"postgresql://app:{SECRET}{mark}{SECRET}@db/x", "postgresql://app:***@db/x")
          for mark in "/@?#:"),
        (f"postgresql://app:%zz{SECRET}@db/x", "postgresql://app:***@db/x"),
        (f"postgresql://app:[{SECRET}@db/x", "postgresql://app:***@db/x"),
        (f"HTTPS://user:{SECRET}@h/base", "HTTPS://***@h/base"),
        ("https://h:8443/a@b", "https://h:8443/a@b"),
        (f"nats://{SECRET}@h", "nats://***@h"),
        (f"temporal://h/x?api_key={SECRET}&task_queue=q", "temporal://h/x?api_key=***&task_queue=q"),
        (f"temporal://{SECRET}@h/x", "temporal://***@h/x"),
        ("etcd://a:1,b:2/x", "etcd://a:1,b:2/x"),
    ],
)  # fmt: skip
def test_a_secret_is_shown_neither_with_a_url_nor_by_a_store_or_an_error(
    url: str, shown: str
) -> None:
    assert redacted(url) == shown
    assert redacted(repr(url)) == repr(shown)
    try:
        store = store_for(url)
    except NotConfigured as error:
        text = f"{error} {error!r} {error.__cause__!r}"
    else:
        text = f"{store.url} {store!r} {connect(url)!r}"
    assert SECRET not in text


READERS: dict[str, Callable[[str], Any]] = {
    "redis": redis_url.read_url,
    "postgresql": Address,
    "http": http_url.read_url,
    "https": http_url.read_url,
    "sqlite": StoreFile,
    "temporal": lambda url: temporal_url.read_url(url).target(),
}
ENDPOINT = redis_url.Endpoint
UNDERSTOOD: list[tuple[str, dict[str, Any]]] = [
    ("redis://", {"endpoints": (ENDPOINT("localhost", 6379),), "db": 0, "login": ("", ""),
                  "topology": "server"}),
    ("redis://[::1]:7000?db=5", {"endpoints": (ENDPOINT("::1", 7000),), "db": 5}),
    ("redis:///run/redis/my%20redis.sock",
     {"endpoints": (ENDPOINT("", 0, "/run/redis/my redis.sock"),)}),
    (f"redis://:{QUOTED}@h", {"login": ("", ODD)}),
    ("redis://app:a:b@c@h", {"login": ("app", "a:b@c")}),
    ("redis://h?restart_holdoff=60s&socket_timeout=2&socket_connect_timeout=500ms",
     {"holdoff": 60.0, "timeout": 2.0, "connect_timeout": 0.5}),
    ("redis://a,b:7000?cluster=true",
     {"topology": "cluster", "endpoints": (ENDPOINT("a", 6379), ENDPOINT("b", 7000))}),
    ("redis://a,b:7000?sentinel=main&sentinel_username=u&sentinel_password=p",
     {"topology": "sentinel", "service": "main", "sentinel_login": ("u", "p"),
      "endpoints": (ENDPOINT("a", 26379), ENDPOINT("b", 7000))}),
    # options of redis-py that make no difference
    ("redis://h/1?max_connections=9&health_check_interval=30&decode_responses=True", {"db": 1}),
    ("postgresql://db:6000/x", {"place": "db:6000/x", "pooler": "auto", "may_migrate": True}),
    ("postgresql://app@db/?pooler=yes&migrate=no",
     {"place": "db:5432/app", "pooler": "yes", "may_migrate": False}),
    ("postgresql://a,b/x?port=7000", {"place": "a:7000,b:7000/x"}),
    ("https://locks.example/",
     {"host": "locks.example", "port": 443, "base": "", "authority": "locks.example"}),
    ("https://[fd00::1]:8443/a/b/",
     {"host": "fd00::1", "port": 8443, "base": "/a/b", "authority": "[fd00::1]:8443"}),
    ("http://[::1]:80", {"authority": "[::1]", "tls": None}),
    ("http://localhost:1", {"authority": "localhost:1", "tls": None}),
    ("http://h:1?insecure=true", {"authority": "h:1", "tls": None}),
    ("sqlite:////a%20b/%3F%25.db", {"path": "/a b/?%.db", "timeout": 10}),
    ("sqlite:///~/b.db?timeout=2.5", {"path": "/home/me/b.db", "timeout": 2.5}),
    ("sqlite:////%ff", {"path": os.fsdecode(b"/\xff")}),
    ("temporal://", {"address": "localhost:7233", "namespace": "default"}),
    ("temporal://[::1]:7300/a.b-c", {"address": "[::1]:7300", "namespace": "a.b-c"}),
]  # fmt: skip


@pytest.mark.parametrize(("url", "settings"), UNDERSTOOD)
def test_what_is_understood(
    url: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = READERS[url.partition(":")[0]](url)
    assert {name: getattr(found, name) for name in settings} == settings


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+psycopg", "POSTGRESQL"])
def test_every_spelling_of_postgresql(scheme: str) -> None:
    assert store_for(f"{scheme}://app@db/leases").url == "postgresql://app@db/leases"


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("postgresql://app:pw@db/x?sslmode=require&pooler=yes&options=-c%20work_mem%3D1MB",
         {"user": "app", "password": "pw", "sslmode": "require", "options": "-c work_mem=1MB",
          "connect_timeout": "10", "client_encoding": "UTF8", "pooler": None,
          "fallback_application_name": "dibs", "target_session_attrs": None}),
        ("postgresql://%2Frun%2Fpg/x?connect_timeout=3", {"host": "/run/pg", "connect_timeout": "3"}),
        ("postgresql://a,b:6000/x",
         {"host": "a,b", "port": ",6000", "target_session_attrs": "read-write"}),
        ("postgresql://a,b/x?target_session_attrs=primary", {"target_session_attrs": "primary"}),
    ],
)  # fmt: skip
def test_libpq_gets_its_settings_and_not_ours(
    url: str, settings: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = conninfo_to_dict(Address(url).conninfo)
    assert {name: found.get(name) and str(found[name]) for name in settings} == settings
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGPORT", "7777")
    assert Address("postgresql:///x").place == "elsewhere:7777/x"


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


def test_files_without_an_api_key_or_a_certificate(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(NotConfigured, match="can't be read: No such file"):
        key_of(f"https://h?key_file={file}")
    for text in ("", "two words", "line\nbreak", "schlüssel", "a\0b"):
        file.write_text(text)
        with pytest.raises(NotConfigured, match=r"is empty|is no API key") as refused:
            key_of(f"https://h?key_file={file}")
        assert not text or text not in str(refused.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(NotConfigured, match="it is no text"):
        key_of(f"https://h?key_file={file}")
    tls = http_url.read_url(f"https://h?cafile={tmp_path}/nothing").tls
    assert tls is not None
    with pytest.raises(NotConfigured, match=f"can't be set up with {tmp_path}/nothing"):
        tls()


def test_a_path_of_sqlite_is_of_where_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert StoreFile("sqlite:///a/b.db").path == str(tmp_path / "a/b.db")


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
