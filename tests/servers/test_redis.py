"""A test's own Redis does what the tests of faults rely on."""

from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dibs.testing import FaultProxy
from tests.servers import ports
from tests.servers.binaries import MissingServer, Program, redis_programs
from tests.servers.process import ServerFailed
from tests.servers.redis import Persistence, RedisServer

ONCE = Retry(NoBackoff(), 0)


@pytest.mark.parametrize("program", redis_programs(), ids=lambda program: program.label)
def test_every_version_starts_and_answers(tmp_path: Path, program: Program) -> None:
    with RedisServer(tmp_path, program=program) as server, server.client() as client:
        assert client.ping()
        assert client.info("server")["process_id"] == server.pid


@pytest.mark.parametrize(
    ("persistence", "kept"), [("none", None), ("everysec", b"1"), ("always", b"1")]
)
def test_what_a_kill_leaves(tmp_path: Path, persistence: Persistence, kept: bytes | None) -> None:
    with RedisServer(tmp_path, persistence=persistence) as server, server.client() as client:
        client.set("a", 1)
        port, pid = server.port, server.pid
        server.kill()
        assert not server.running
        server.start()
        assert server.port == port
        assert server.pid != pid
        assert client.get("a") == kept


def test_a_paused_one_keeps_silent_until_it_resumes(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, server.client(socket_timeout=0.1, retry=ONCE) as client:
        assert client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert server.client().ping()
        server.pause()  # and is ended all the same
    assert not server.running


def test_tls(tmp_path: Path) -> None:
    with RedisServer(tmp_path, tls=True) as server, server.client() as client:
        assert server.url.startswith("rediss://")
        assert client.ping()
        with pytest.raises(redis.RedisError):
            redis.Redis(port=server.port, retry=ONCE).ping()


def test_tls_is_refused_where_the_program_lacks_it(tmp_path: Path) -> None:
    lacking = Program(Path("/bin/true"), "redis", (7,))
    with pytest.raises(MissingServer, match="without TLS"):
        RedisServer(tmp_path, tls=True, program=lacking)


def test_unix_socket_and_password(tmp_path: Path) -> None:
    with RedisServer(tmp_path, unix=True, requirepass="a/b c") as server:
        assert redis.Redis.from_url(server.unix_url).ping()
        assert server.client().ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=ONCE).ping()


def test_users(tmp_path: Path) -> None:
    users = ["default off", "app on >secret ~lease:* &* +@all -flushall"]
    with RedisServer(tmp_path, users=users) as server:
        client = redis.Redis(port=server.port, username="app", password="secret")
        assert client.set("lease:a", 1)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.flushall()


def test_a_port_that_is_taken_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    taken = [redis_server.port]
    real = ports.free_port
    monkeypatch.setattr(
        "tests.servers.server.free_port",
        lambda *, also: taken.pop() if taken else real(also=also),
    )
    with RedisServer(tmp_path) as server:
        assert server.port != redis_server.port
    assert not taken


def test_one_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-directive"):
        RedisServer(tmp_path, extra=["no-such-directive yes"]).start()


def test_a_reply_is_lost_on_the_way_and_the_command_was_done(redis_url: str) -> None:
    direct = redis.Redis.from_url(redis_url)
    port: int = direct.get_connection_kwargs()["port"]
    with FaultProxy("127.0.0.1", port) as proxy:
        client = redis.Redis.from_url(proxy.url_for(redis_url), socket_timeout=0.2, retry=ONCE)
        assert client.ping()
        proxy.drop_replies()
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
        assert direct.get("n") == b"1"
        proxy.heal()
        assert client.incr("n") == 2
