"""`dibs doctor`: what it says of real servers, good and bad."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.sync import Client
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


def test_a_file(verb: Main, findings: Findings, client: Client) -> None:
    client.status("x")
    code, found = findings(client.url)
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}
    about = {"latency", "promises", "file", "disk", "log", "permissions", "notifications"}
    assert found.keys() == about
    done = verb("doctor", client.url)
    assert (done.code, done.out.startswith(f"{client.url}\n  ok       latency: ")) == (0, True)


def test_a_redis(findings: Findings, tmp_path: Path) -> None:
    """One server, in all the states that its settings can bring it to."""
    few = "app on >secret ~* &* +eval +evalsha +script|load +get +mget +set +time +ping +subscribe +publish"
    with RedisServer(tmp_path, users=[few]) as server, server.client() as client:

        def level(about: str, query: str = "", **settings: str) -> str:
            """Of what is found; all else is well."""
            for name, value in settings.items():
                client.config_set(name.replace("_", "-"), value)
            code, found = findings(f"{server.url}{query}")
            levels = {each["about"]: str(each["level"]) for each in found.values()}
            assert code == ("problem" in levels.values())
            assert {levels[each] for each in levels if each not in (about, "promises")} == {"ok"}
            return levels[about]

        _, found = findings(server.url)
        assert "restart_holdoff" in found["persistence"]["advice"]
        assert found["promises"]["level"] == "warning"
        assert "a restart loses all leases. See persistence below." in found["promises"]["told"]
        assert level("persistence") == "problem"
        assert level("persistence", "?restart_holdoff=60s") == "ok"
        assert level("persistence", appendonly="yes", appendfsync="everysec") == "warning"
        assert level("persistence", appendfsync="always") == "ok"
        assert level("eviction", maxmemory="50mb", maxmemory_policy="allkeys-lru") == "problem"
        assert level("eviction", maxmemory="256mb", maxmemory_policy="noeviction") == "ok"
        used = client.info("memory")["used_memory"]
        for number in range(30):  # in pieces, since the server keeps a large request's buffer
            client.set(f"ballast-{number}", "x" * (1 << 20))
        nearly = client.info("memory")["used_memory"] * 10 // 9
        assert level("memory", maxmemory=str(nearly)) == "warning"
        assert level("memory", maxmemory=str(used)) == "problem"
        client.config_set("maxmemory", "0")
        code, found = findings(server.url.replace("redis://", "redis://app:secret@"))
        assert (code, found["server"]["level"]) == (0, "note"), "this user may ask little"


def test_a_database(findings: Findings, tmp_path: Path) -> None:
    """Dibs turns on the commits that it writes, also through a pooler."""
    with PostgresServer(tmp_path) as server:
        url = server.new_database()
        code, found = findings(url)
        assert code == 0
        assert {each["level"] for each in found.values()} == {"ok"}
        assert "migration" in found["server"]["told"]
        with server.connect() as connection:
            connection.execute("alter role all set synchronous_commit to off")
        with PgBouncer(tmp_path, server) as pooler:
            code, found = findings(pooler.url_of(url))
        levels = {about: each["level"] for about, each in found.items() if each["level"] != "ok"}
        assert (code, levels) == (0, {"durability": "note", "notifications": "warning"})


def test_a_database_that_may_lose_all(
    verb: Main, findings: Findings, postgres_server: PostgresServer
) -> None:
    """The tests' own shared server has fsync off, which no other should."""
    url = postgres_server.new_database()
    done = verb("doctor", f"{url}?migrate=no")
    assert done.code == 77
    assert "schema dibs of" in done.err
    assert "does not exist" in done.err
    code, found = findings(url)
    assert code == 1
    assert found["durability"]["level"] == found["promises"]["level"] == "problem"
    assert "it does not keep: durable, power-loss" in found["promises"]["told"]


def test_nobody_there(verb: Main) -> None:
    done = verb("doctor", "redis://127.0.0.1:1")
    assert (done.code, "can't be reached" in done.err) == (69, True)


async def test_programs_can_ask_too() -> None:
    async with dibs.connect("memory://examined") as memory:
        assert [finding.about for finding in await memory.examine()] == ["latency", "promises"]
