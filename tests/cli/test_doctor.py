"""`dibs doctor`: what it says of real servers, good and bad."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs.sync
from tests.cli.processes import Main
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

type Findings = Callable[[str], tuple[int, dict[str, dict[str, Any]]]]
"""The exit code, and what was found, by what it is about."""


@pytest.fixture
def findings(verb: Main) -> Findings:
    def examine(url: str) -> tuple[int, dict[str, dict[str, Any]]]:
        done = verb("doctor", "--json", url)
        assert done.err == ""
        assert all(set(each) == {"about", "level", "told", "advice"} for each in done.objects)
        return done.code, {each["about"]: each for each in done.objects}

    return examine


def test_a_file(verb: Main, findings: Findings, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with dibs.sync.connect(url) as client:
        client.status("x")
    code, found = findings(url)
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}
    assert {"latency", "promises", "file", "disk", "log", "permissions", "pushes"} == set(found)
    done = verb("doctor", url)
    assert done.code == 0
    assert done.out.startswith(f"{url}\n  ok       latency: ")


def test_a_redis_that_forgets_and_evicts(findings: Findings, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("persistence", "query", "level"),
    [("none", "?restart_holdoff=60s", "ok"), ("everysec", "", "warning"), ("always", "", "ok")],
)
def test_how_a_redis_survives_a_restart(
    findings: Findings, tmp_path: Path, persistence: Any, query: str, level: str
) -> None:
    with RedisServer(tmp_path, persistence=persistence) as server:
        code, found = findings(f"{server.url}{query}")
    assert (code, found["persistence"]["level"]) == (0, level)
    others = {
        each["level"] for about, each in found.items() if about not in ("persistence", "promises")
    }
    assert others == {"ok"}


def test_a_redis_without_room(findings: Findings, tmp_path: Path) -> None:
    """Nearly full is a warning; full is a problem, and the store can still be examined."""
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


def test_a_redis_user_who_may_ask_little(findings: Findings, tmp_path: Path) -> None:
    few = "app on >secret ~* &* +eval +evalsha +script|load +get +mget +set +time +ping +subscribe +publish"
    with RedisServer(tmp_path, users=[few]) as server:
        url = server.url.replace("redis://", "redis://app:secret@")
        code, found = findings(url)
    assert code == 0
    assert found["server"]["level"] == "note"


def test_a_database(findings: Findings, postgres_server: PostgresServer) -> None:
    """The tests' own shared server has fsync off, which no other should."""
    code, found = findings(postgres_server.new_database())
    assert code == 1
    assert found["durability"]["level"] == "problem"
    assert found["promises"]["level"] == "problem"
    assert "it does not keep: durable, power-loss" in found["promises"]["told"]
    assert found["pushes"]["level"] == "ok"
    assert "migration" in found["server"]["told"]


def test_a_database_that_keeps_all(findings: Findings, tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        code, found = findings(server.new_database())
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}


def test_a_pooler_in_between(
    findings: Findings, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.new_database()
    with PgBouncer(tmp_path, postgres_server) as pooler:
        _, found = findings(pooler.url_of(url))
    assert found["pushes"]["level"] == "warning"


def test_commits_that_are_not_awaited(findings: Findings, tmp_path: Path) -> None:
    """Dibs turns them on for what it writes, also through a pooler."""
    with PostgresServer(tmp_path, options={"synchronous_commit": "off"}) as server:
        code, found = findings(server.new_database())
    assert (code, found["durability"]["level"]) == (0, "note")
    assert found["promises"]["level"] == "ok"


def test_a_database_without_the_schema(verb: Main, postgres_server: PostgresServer) -> None:
    done = verb("doctor", f"{postgres_server.new_database()}?migrate=no")
    assert done.code == 77
    assert "schema dibs of" in done.err
    assert "does not exist" in done.err


def test_nobody_there(verb: Main) -> None:
    done = verb("doctor", "redis://127.0.0.1:1")
    assert done.code == 69
    assert "can't be reached" in done.err


async def test_programs_can_ask_too(tmp_path: Path) -> None:
    async with dibs.connect(f"sqlite:///{tmp_path}/leases.db") as client:
        assert {finding.level for finding in await client.examine()} == {"ok"}
    async with dibs.connect("memory://examined") as memory:
        found = [finding.about for finding in await memory.examine()]
    assert found == ["latency", "promises"]
