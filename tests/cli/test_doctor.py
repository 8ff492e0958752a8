"""`dibs doctor`: what it says of real servers, good and bad."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dibs.sync
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dibs", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def findings(url: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and what was found, by what it is about."""
    done = doctor("--json", url)
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(set(each) == {"about", "level", "told", "advice"} for each in found)
    return done.returncode, {each["about"]: each for each in found}


def test_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with dibs.sync.connect(url) as client:
        client.status("x")
    code, found = findings(url)
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}
    assert {"latency", "promises", "file", "disk", "log", "permissions", "pushes"} == set(found)
    done = doctor(url)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{url}\n  ok       latency: ")


def test_a_redis_that_forgets_and_evicts(tmp_path: Path) -> None:
    lines = ("maxmemory 50mb", "maxmemory-policy allkeys-lru")
    with RedisServer(tmp_path, extra=lines) as server:
        code, found = findings(server.url)
    assert code == 1
    assert found["persistence"]["level"] == "problem"
    assert "restart_holdoff" in found["persistence"]["advice"]
    assert found["promises"]["level"] == "warning"
    assert "a restart loses all leases. See persistence below." in found["promises"]["told"]
    assert found["eviction"]["level"] == "problem"
    assert found["clock"]["level"] == "ok"


def test_a_redis_that_forgets_and_waits_after_a_restart(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        code, found = findings(f"{server.url}?restart_holdoff=60s")
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}
    assert "60 s" in found["persistence"]["told"]
    assert "restart_holdoff" in found["promises"]["told"]


def test_a_redis_that_may_lose_the_last_second(tmp_path: Path) -> None:
    with RedisServer(tmp_path, persistence="everysec") as server:
        code, found = findings(server.url)
    assert (code, found["persistence"]["level"]) == (0, "warning")
    assert "appendfsync always" in found["persistence"]["advice"]


def test_a_redis_without_room(tmp_path: Path) -> None:
    """Nearly full it is told; full it is a problem, and can still be looked at."""
    lines = ("maxmemory 256mb", "maxmemory-policy noeviction")
    with RedisServer(tmp_path, persistence="always", extra=lines) as server:
        assert findings(server.url)[1]["memory"]["level"] == "ok"
        with server.client() as client:
            used = client.info("memory")["used_memory"]
            for number in range(30):  # in pieces, since the server keeps a large request's buffer
                client.set(f"ballast-{number}", "x" * (1 << 20))
            client.config_set("maxmemory", client.info("memory")["used_memory"] * 10 // 9)
            code, found = findings(server.url)
            assert (code, found["memory"]["level"]) == (0, "warning")
            client.config_set("maxmemory", used)
            code, found = findings(server.url)
    assert (code, found["memory"]["level"]) == (1, "problem")
    assert "nothing can be granted" in found["memory"]["told"]


def test_a_redis_that_keeps_all(tmp_path: Path) -> None:
    with RedisServer(tmp_path, persistence="always") as server:
        code, found = findings(server.url)
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}


def test_a_redis_user_who_may_ask_little(tmp_path: Path) -> None:
    few = "app on >secret ~* &* +eval +evalsha +script|load +get +mget +set +time +ping +subscribe +publish"
    with RedisServer(tmp_path, users=[few]) as server:
        url = server.url.replace("redis://", "redis://app:secret@")
        code, found = findings(url)
    assert code == 0
    assert found["server"]["level"] == "note"


def test_a_database(postgres_server: PostgresServer) -> None:
    """The tests' own shared server has fsync off, which no other should."""
    code, found = findings(postgres_server.new_database())
    assert code == 1
    assert found["durability"]["level"] == "problem"
    assert found["promises"]["level"] == "problem"
    assert "it does not keep: durable, power-loss" in found["promises"]["told"]
    assert found["pushes"]["level"] == "ok"
    assert "migration" in found["server"]["told"]


def test_a_database_that_keeps_all(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        code, found = findings(server.new_database())
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}


def test_a_pooler_in_between(tmp_path: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    with PgBouncer(tmp_path, postgres_server) as pooler:
        _, found = findings(pooler.url_of(url))
    assert found["pushes"]["level"] == "warning"


def test_commits_that_are_not_awaited(tmp_path: Path) -> None:
    """Dibs turns them on for what it writes, also through a pooler."""
    with PostgresServer(tmp_path, options={"synchronous_commit": "off"}) as server:
        code, found = findings(server.new_database())
    assert (code, found["durability"]["level"]) == (0, "note")
    assert found["promises"]["level"] == "ok"


def test_a_database_without_the_schema(postgres_server: PostgresServer) -> None:
    done = doctor(f"{postgres_server.new_database()}?migrate=no")
    assert done.returncode == 77
    assert "schema dibs of" in done.stderr
    assert "does not exist" in done.stderr


def test_nobody_there() -> None:
    done = doctor("redis://127.0.0.1:1")
    assert done.returncode == 69
    assert "can't be reached" in done.stderr


def test_the_url_is_given_once() -> None:
    assert doctor("--url", "sqlite:///a.db", "sqlite:///b.db").returncode == 64


async def test_programs_can_ask_too(tmp_path: Path) -> None:
    async with dibs.connect(f"sqlite:///{tmp_path}/leases.db") as client:
        assert {finding.level for finding in await client.examine()} == {"ok"}


def test_memory_has_little_to_say() -> None:
    from dibs.sync import connect

    with connect("memory://examined") as client:
        assert [finding.about for finding in client.examine()] == ["latency", "promises"]
