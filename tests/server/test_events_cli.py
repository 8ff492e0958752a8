"""`dibs events` and `dibs watch`: over the service's streams, and by looking at a store."""

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

import dibs.sync
from dibs.cli.events import line
from dibs.server.lock_events import LockEvent
from dibs.testing import FaultProxy
from tests.cli.processes import Cli
from tests.server.inside import followers_of, is_watched, keys_of
from tests.server.test_events import acquire, release
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    runs = Cli(tmp_path)
    yield runs
    runs.kill_all()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World.over(tmp_path)
    yield world
    world.close()


@pytest.fixture
def way(world: World) -> Iterator[FaultProxy]:
    """A way to it that can be cut."""
    _, _, host = world.url.partition("://")
    with FaultProxy(host.split(":")[0], int(host.split(":")[1])) as way:
        yield way


def service(world: World, key: str = "", way: FaultProxy | None = None) -> dict[str, str]:
    """The environment of somebody with a key."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEASE_", "DIBS_"))}
    url = way.url_for(world.url) if way else world.url
    return clean | {"DIBS_URL": url, "DIBS_API_KEY": key or world.admin_key}


def read(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def interrupted(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(LONG)


def until_watched(world: World) -> None:
    wait_until(lambda: is_watched(world), "somebody who watches")


def test_events_of_a_service(cli: Cli, world: World) -> None:
    plain = cli.start("events", "jobs/", env=service(world))
    until_watched(world)
    objects = cli.start("events", "--json", "--renewals", env=service(world))
    wait_until(lambda: followers_of(world) == 2, "two who watch")
    client = world.client()
    held = acquire(client, "jobs/1", owner="somebody", note="why \x1b[31mnot".replace("\x1b", "¿"))
    client.patch(f"/v1/locks/{b64('jobs/1')}", params={"id": held["id"], "ttl": 60})
    release(client, "jobs/1", held["id"])
    told = [json.loads(read(objects)) for _ in range(3)]
    assert [each["what"] for each in told] == ["granted", "renewed", "released"]
    assert {each["name"] for each in told} == {"jobs/1"}
    assert told[0]["token"] == held["sequencer"]
    first, second = read(plain), read(plain)
    assert "granted   lock jobs/1, somebody (why" in first
    assert re.search(r"released  lock jobs/1, somebody .* held for 0 s", second)
    assert interrupted(plain) == -signal.SIGINT
    assert interrupted(objects) == -signal.SIGINT


def test_events_go_on_where_they_were_when_the_connection_breaks(
    cli: Cli, world: World, way: FaultProxy
) -> None:
    tail = cli.start("events", "--json", env=service(world, way=way))
    until_watched(world)
    acquire(world.client(), "a")
    assert json.loads(read(tail))["name"] == "a"
    way.cut()
    acquire(world.client(), "b")
    assert json.loads(read(tail))["name"] == "b"


@pytest.mark.parametrize("verb", [("events",), ("watch", "x")], ids=lambda verb: verb[0])
def test_a_connection_that_broke_and_stands_again_is_told(
    cli: Cli, world: World, way: FaultProxy, verb: tuple[str, ...]
) -> None:
    tail = cli.start(*verb, "--json", env=service(world, way=way))
    until_watched(world)
    held = acquire(world.client(), "x", owner="somebody")
    while "somebody" not in read(tail):  # so the stream stands
        pass
    way.cut()
    assert tail.stderr is not None
    told = [json.loads(tail.stderr.readline()) for _ in range(2)]
    assert [each["event"] for each in told] == ["warning", "back"]
    assert told[0]["message"].endswith("; reconnecting")
    assert told[1]["message"] == f"reconnected to {way.url_for(world.url)}"
    release(world.client(), "x", held["id"])
    while (each := json.loads(read(tail))).get("what") != "released" and each.get("held", True):
        pass
    interrupted(tail)
    assert tail.stderr.read() == "", "it is said once"


def test_events_of_another_store(cli: Cli, tmp_path: Path) -> None:
    tail = cli.start("events", "--json", "--every", "0.1")
    names, told = (f"x{number}" for number in count()), dict[str, Any](what="")
    with dibs.sync.connect(f"sqlite:///{tmp_path / 'leases.db'}") as client:
        while told["what"] != "granted":  # until it looks; what it tells may be of a lock before
            with client.lock(next(names)):
                if _has_line(tail, 0.3):
                    told = json.loads(read(tail))
    assert told["found"]
    while (later := json.loads(read(tail)))["name"] != told["name"]:
        pass
    assert (later["what"], later["token"]) == ("released", told["token"])


def _has_line(process: "subprocess.Popen[str]", seconds: float) -> bool:
    assert process.stdout is not None
    return _readable(process.stdout.fileno(), seconds)


@pytest.mark.parametrize("verb", [("events",), ("watch", "x")], ids=lambda verb: verb[0])
def test_who_is_not_let_in_is_told(cli: Cli, world: World, verb: tuple[str, ...]) -> None:
    done = cli(*verb, env=service(world, "dibs_000000000000_0123456789012345678901"))
    assert done.returncode == 77
    assert "DIBS_API_KEY" in done.stderr


def test_a_revoked_key_ends_it(cli: Cli, world: World) -> None:
    key = world.key("read")
    tail = cli.start("events", env=service(world, key))
    until_watched(world)
    world.do(lambda: keys_of(world).revoke(key.split("_")[1]))
    assert tail.wait(LONG) == 77


@pytest.mark.parametrize("of_service", [True, False], ids=["service", "store"])
def test_watch_tells_each_change(cli: Cli, world: World, tmp_path: Path, of_service: bool) -> None:
    env = service(world) if of_service else cli.environment
    plain = cli.start("watch", "x", "--every", "0.1", env=env)
    objects = cli.start("watch", "x", "--every", "0.1", "--json", env=env)
    assert read(plain).endswith("lock x: free\n")
    assert json.loads(read(objects))["held"] is False
    client = world.client()
    held = acquire(client, "x", owner="somebody")
    assert "lock x: held by somebody for" in read(plain)
    (holder,) = json.loads(read(objects))["holders"]
    assert (holder["owner"], holder["note"]) == ("somebody", "")
    release(client, "x", held["id"])
    assert read(plain).endswith("lock x: free\n")
    assert interrupted(plain) == -signal.SIGINT


def test_on_a_terminal_it_is_one_line(cli: Cli, world: World) -> None:
    acquire(world.client(), "x", owner="somebody")
    ours, theirs = pty.openpty()
    process = cli.start("watch", "x", env=service(world) | {"COLUMNS": "60"}, stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as screen:
        text = _until(screen, b" s, expires in ")
        assert b"\n" not in text
        assert b"\r\x1b[Klock x: held by somebody" in text
        interrupted(process)


def _until(screen: IO[bytes], wanted: bytes) -> bytes:
    text = b""
    while wanted not in text:
        text += screen.read(4096)
    return text


def test_list_sorts(cli: Cli, world: World) -> None:
    client = world.client()
    acquire(client, "pool/a", owner="one", capacity=3)
    acquire(client, "b", owner="two", note="why", ttl=600)

    def names(order: str) -> list[str]:
        rows = cli("list", "--sort", order, "--no-header", env=service(world)).stdout.splitlines()
        return [row.split("\t")[1] for row in rows]

    assert names("name") == ["b", "pool/a"]
    assert names("expires") == ["pool/a", "b"]
    assert sorted(names("held")) == sorted(names("waiting")) == ["b", "pool/a"]


def test_list_follows_on_a_terminal(cli: Cli, world: World, tmp_path: Path) -> None:
    acquire(world.client(), "x", owner="somebody")
    ours, theirs = pty.openpty()
    env = service(world) | {"COLUMNS": "100", "LINES": "20", "TERM": "xterm"}
    process = cli.start("list", "--watch", "--every", "0.2", env=env, stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as screen:
        text = _until(screen, b"somebody")
        assert b"1 in use, 0 waiting; by waiting" in text
        acquire(world.client(), "another")
        _until(screen, b"another")
        os.kill(process.pid, signal.SIGINT)
        with suppress(OSError):  # nobody has the other end any more
            while screen.read(4096):
                pass
    assert process.wait(LONG) == -signal.SIGINT


def test_watching_a_list_needs_a_terminal(cli: Cli) -> None:
    done = cli("list", "--watch")
    assert done.returncode == 64
    assert "needs a terminal; in a pipe use `dibs events`" in done.stderr


def _readable(file: int, seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"token": 5, "slots": (2,), "waited": 3.0}, "token 5, slots 2, after 3 s in the queue"),
        ({"owner": "a\x1b[2J", "reason": "b\nc"}, r"a\x1b[2J, b\nc"),
        ({"note": "only"}, "(only)"),
    ],
)
def test_a_line_is_safe_to_look_at(event: dict[str, Any], told: str) -> None:
    text = line(LockEvent("granted", b"lock:\xff\x07", 0.0, **event))
    assert text.isprintable() or "\x1b" not in text.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert r"lock \xff\x07" in text
    assert text.endswith(told)
