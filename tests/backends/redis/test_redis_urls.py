"""What URLs and clients of the user's own say, and what is refused, never with a password."""

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from dibs.backends import BUILTIN, store_for
from dibs.backends.redis import RedisStore
from dibs.backends.redis.from_client import read_client
from dibs.backends.redis.settings import Endpoint, Settings
from dibs.backends.redis.url import read_url
from dibs.errors import NotConfigured

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
    assert read_url(url).login() == login


def test_options() -> None:
    settings = read_url(
        "redis://h?protocol=3&restart_holdoff=60s&socket_timeout=2&socket_connect_timeout=500ms"
    )
    assert (settings.protocol, settings.holdoff) == (3, 60.0)
    assert (settings.timeout, settings.connect_timeout) == (2.0, 0.5)
    assert read_url("redis://h?cluster=true").topology == "cluster"
    assert read_url("redis://h?cluster=false").topology == "server"
    sentinel = read_url("redis://h?sentinel=main&sentinel_username=u&sentinel_password=p")
    assert (sentinel.topology, sentinel.service) == ("sentinel", "main")
    pool = "max_connections=9&health_check_interval=30&decode_responses=True&retry_on_timeout=yes"
    assert read_url(f"redis://h/1?{pool}&socket_timeout=2").db == 1
    assert sentinel.sentinel_login() == ("u", "p")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://h?colour=red", "there is no option colour="),
        ("redis://h?retry=1&password=x", "there is no option"),
        ("redis://h?protocol=4", "protocol= is 2 or 3"),
        ("redis://h?db=x", "db= is a number"),
        ("redis://h/x", "is no number of a database"),
        ("redis://h/1?db=2", "given twice"),
        ("redis://h?db=1&db=2", "given twice"),
        ("redis://h:port", "is no host:port"),
        ("redis://h:70000", "is no host:port"),
        ("redis://a,b", "several hosts need cluster=true, or sentinel=SERVICE"),
        ("redis://a?cluster=true&sentinel=x", "exclude each other"),
        ("redis://a/1?cluster=true", "a Cluster has no database 1"),
        ("redis://a?cluster=true&restart_holdoff=60s", "can't be kept on a Cluster"),
        ("redis://a?restart_holdoff=soon", "restart_holdoff= is a duration"),
        ("redis:///run/x.sock?cluster=true", "a socket's path names one server"),
        ("rediss:///run/x.sock", "a socket on this machine is not encrypted"),
        ("redis://h?ssl_ca_certs=ca.pem", "write rediss://"),
        ("valkey://h?ssl_check_hostname=false", "write valkeys://"),
        ("rediss://h?ssl_keyfile=k", "needs ssl_certfile="),
        ("rediss://h?ssl_cert_reqs=maybe", "is required or none"),
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

    monkeypatch.setattr("dibs.backends.imported", missing)
    for scheme in ("redis", "rediss", "valkey", "valkeys"):
        assert scheme in BUILTIN
        with pytest.raises(NotConfigured, match=r"pip install 'dibs\[redis\]'"):
            store_for(f"{scheme}://h")


# ---- clients of the user's own --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_a_plain_client(kind: type) -> None:
    client = kind(host="h", port=7000, db=3, username="u", password="pw", socket_timeout=2)
    settings = read_client(client)
    assert settings.endpoints == (Endpoint("h", 7000),)
    assert (settings.db, settings.login(), settings.timeout) == (3, ("u", "pw"), 2)
    assert settings.tls is None
    assert RedisStore.from_client(client).url == "redis://h:7000/3"


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_a_client_by_tls_and_one_by_a_socket(kind: type) -> None:
    secure = read_client(kind(host="h", ssl=True, ssl_cert_reqs="none"))
    assert secure.tls is not None
    assert secure.shown == "rediss://h:6379/0"
    assert not secure.tls().check_hostname
    local = read_client(kind(unix_socket_path="/run/redis.sock"))
    assert local.endpoints == (Endpoint("", 0, "/run/redis.sock"),)


@pytest.mark.parametrize(
    "kind", [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel], ids=["sync", "asyncio"]
)
def test_a_client_by_sentinels(kind: type) -> None:
    sentinels = kind([("a", 1), ("b", 2)], sentinel_kwargs={"password": "sp"})
    settings = read_client(sentinels.master_for("main", password="mp", db=1))
    assert settings.endpoints == (Endpoint("a", 1), Endpoint("b", 2))
    assert (settings.topology, settings.service, settings.db) == ("sentinel", "main", 1)
    assert (settings.login(), settings.sentinel_login()) == (("", "mp"), ("", "sp"))
    with pytest.raises(NotConfigured, match="reads from replicas"):
        read_client(sentinels.slave_for("main"))


def test_an_asyncio_cluster_client() -> None:
    client = redis.asyncio.RedisCluster(host="h", port=7000, username="u", password="pw")
    settings = read_client(client)
    assert (settings.topology, settings.login()) == ("cluster", ("u", "pw"))
    assert settings.endpoints == (Endpoint("h", 7000),)


def test_a_provider_of_credentials_is_asked_each_time() -> None:
    class Rotating(redis.CredentialProvider):
        asked = 0

        def get_credentials(self) -> tuple[str, str]:
            self.asked += 1
            return "u", f"pw{self.asked}"

    login = read_client(redis.Redis(credential_provider=Rotating())).login
    assert [login(), login()] == [("u", "pw1"), ("u", "pw2")]


def test_what_can_not_be_honoured_is_refused() -> None:
    with pytest.raises(NotConfigured, match="ssl_ciphers"):
        read_client(redis.Redis(ssl=True, ssl_ciphers="HIGH"))
    with pytest.raises(NotConfigured, match="give a client of redis-py's"):
        RedisStore.from_client(object())


def test_settings_show_no_password() -> None:
    settings: Settings = read_client(redis.Redis(host="h", username="u", password="s3cret"))
    assert "s3cret" not in repr(settings)
