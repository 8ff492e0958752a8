"""What URLs say, and what is refused, never with a password."""

import pytest

from dibs.errors import NotConfigured
from dibs.stores.redis import RedisStore
from dibs.stores.redis.url import Endpoint, read_url
from dibs.stores.registry import BUILTIN, store_for

SECRET = "s3:cr/et@#?&"
QUOTED = "s3%3Acr%2Fet%40%23%3F%26"


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
def test_where_it_leads(url: str, endpoints: list[tuple[str, int, str]]) -> None:
    assert read_url(url).endpoints == tuple(Endpoint(*each) for each in endpoints)


@pytest.mark.parametrize(
    ("url", "db"), [("redis://h", 0), ("redis://h/4", 4), ("redis://h?db=5", 5), ("redis:///6", 6)]
)
def test_which_database(url: str, db: int) -> None:
    assert read_url(url).db == db


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("redis://h", ("", "")),
        (f"redis://:{QUOTED}@h", ("", SECRET)),
        (f"redis://app:{QUOTED}@h", ("app", SECRET)),
        ("redis://app:a:b@c@h", ("app", "a:b@c")),
    ],
)
def test_who_logs_in(url: str, login: tuple[str, str]) -> None:
    assert read_url(url).login == login


def test_options() -> None:
    settings = read_url(
        "redis://h?protocol=3&restart_holdoff=60s&socket_timeout=2&socket_connect_timeout=500ms"
    )
    assert settings.holdoff == 60.0
    assert (settings.timeout, settings.connect_timeout) == (2.0, 0.5)
    assert read_url("redis://h?cluster=true").topology == "cluster"
    assert read_url("redis://h?cluster=false").topology == "server"
    sentinel = read_url("redis://h?sentinel=main&sentinel_username=u&sentinel_password=p")
    assert (sentinel.topology, sentinel.service) == ("sentinel", "main")
    pool = "max_connections=9&health_check_interval=30&decode_responses=True&retry_on_timeout=yes"
    assert read_url(f"redis://h/1?{pool}&socket_timeout=2").db == 1
    assert sentinel.sentinel_login == ("u", "p")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://h?retry=1&password=x", "there is no option"),
        ("redis://h/x", "is no number of a database"),
        ("redis://h/1?db=2", "given twice"),
        ("redis://h:port", "is no host:port"),
        ("redis://h:70000", "is no host:port"),
        ("redis://a,b", "several hosts need cluster=true, or sentinel=SERVICE"),
        ("redis://a?cluster=true&sentinel=x", "exclude each other"),
        ("redis://a/1?cluster=true", "a Cluster has no database 1"),
        ("redis://a?cluster=true&restart_holdoff=60s", "can't be kept on a Cluster"),
        ("redis:///run/x.sock?cluster=true", "a socket's path names one server"),
        ("rediss:///run/x.sock", "a socket on this machine is not encrypted"),
        ("redis://h?ssl_ca_certs=ca.pem", "write rediss://"),
        ("valkey://h?ssl_check_hostname=false", "write valkeys://"),
        ("rediss://h?ssl_keyfile=k", "needs ssl_certfile="),
        ("redis://h?sentinel_password=p", "no sentinel=SERVICE"),
        ("redis:h", "a Redis URL looks like"),
        ("unix:///run/x.sock?db=1", r"write redis:///run/redis/redis\.sock"),
    ],
)
def test_what_is_refused(url: str, told: str) -> None:
    with pytest.raises(NotConfigured, match=told) as refusal:
        store_for(url)
    assert "password=x" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://app:{QUOTED}@h/0",
        f"redis://app:{SECRET}@h/0",
        "redis://app:s3:cr/et@h:port",
        "redis://h?sentinel=x&sentinel_password=s3:cr/et&x=1",
    ],
)
def test_no_password_is_ever_shown(url: str) -> None:
    try:
        settings = read_url(url)
        said = f"{RedisStore(url).url} {settings!r} {settings}"
    except NotConfigured as refusal:
        said = str(refusal)
    assert "s3" not in said
    assert "h" in said


def test_the_shown_url_keeps_the_rest() -> None:
    assert RedisStore("redis://app:pw@h:7000/2?protocol=3").url == (
        "redis://app:***@h:7000/2?protocol=3"
    )


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError("No module named 'hiredis'", name="hiredis")

    monkeypatch.setattr("dibs.stores.registry.imported", missing)
    for scheme in ("redis", "rediss", "valkey", "valkeys"):
        assert scheme in BUILTIN
        with pytest.raises(NotConfigured, match=r"pip install 'dibs\[redis\]'"):
            store_for(f"{scheme}://h")


def test_settings_show_no_password() -> None:
    assert "s3cret" not in repr(read_url("redis://u:s3cret@h"))
