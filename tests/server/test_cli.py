"""`dibs events`, `watch`, `list`, `run` and `acquire` at a service, and while it is away."""

import json
import os
import pty
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from select import select
from subprocess import PIPE, Popen
from typing import Any

import pytest

import dibs.sync
from dibs.cli.events import line as shown
from dibs.server.lock_events import LockEvent
from dibs.testing import FaultProxy
from tests.cli.processes import Cli, end, line
from tests.server.inside import followers_of
from tests.server.world import LONG, World, lock
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A server over the store of `cli`."""
    with World.over(tmp_path) as world:
        yield world


def service(world: World, key: str = "", url: str = "") -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEASE_", "DIBS_"))}
    return clean | {"DIBS_URL": url or world.url, "DIBS_API_KEY": key or world.admin_key}


def parsed(process: "Popen[str]") -> Any:
    return json.loads(line(process))


def interrupted(process: "Popen[str]") -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(LONG)


def test_events_of_a_service(cli: Cli, world: World) -> None:
    plain = cli.start("events", "jobs/", env=service(world))
    in_json = cli.start("events", "--json", "--renewals", env=service(world))
    wait_until(lambda: followers_of(world) == 2, "two streams")
    client = world.client()
    held = client.acquired("jobs/1", note="why")
    client.patch(lock("jobs/1"), params={"id": held["id"], "ttl": 60})
    client.release("jobs/1", held)
    told = [parsed(in_json) for _ in range(3)]
    assert [each["what"] for each in told] == ["granted", "renewed", "released"]
    assert {(each["name"], each["token"]) for each in told} == {("jobs/1", held["sequencer"])}
    assert "granted   lock jobs/1, web-3 (why" in line(plain)
    assert re.search(r"released  lock jobs/1, web-3 .* held for 0 s", line(plain))
    assert interrupted(plain) == interrupted(in_json) == -signal.SIGINT


def test_a_broken_connection_is_reported_and_replaced(cli: Cli, world: World) -> None:
    host, port = world.url.removeprefix("http://").split(":")
    with FaultProxy(host, int(port)) as way:
        url = way.url_for(world.url)
        tail = cli.start("events", "--json", env=service(world, url=url))
        wait_until(lambda: followers_of(world), "a stream")
        held = world.client().acquired("x")
        assert parsed(tail)["what"] == "granted"
        way.hang()
        way.cut()
        world.client().release("x", held)  # during the gap
        assert tail.stderr is not None
        told = [json.loads(tail.stderr.readline())]
        way.wait_for(lambda: way.connections)
        way.cut()  # so the second attempt fails, too
        way.heal()
        told.append(json.loads(tail.stderr.readline()))
        assert [each["event"] for each in told] == ["warning", "back"]
        assert parsed(tail)["what"] == "released"
        interrupted(tail)
        assert tail.stderr.read() == "", "once"


def test_events_of_another_store(cli: Cli, tmp_path: Path) -> None:
    tail = cli.start("events", "--json", "--every", "0.1")
    names, told = (f"x{number}" for number in count()), dict[str, Any](what="")
    with dibs.sync.connect(f"sqlite:///{tmp_path / 'leases.db'}") as client:
        while told["what"] != "granted":  # until it looks, first perhaps at the lock before
            with client.lock(next(names)):
                assert tail.stdout is not None
                if select([tail.stdout], [], [], 0.3)[0]:
                    told = parsed(tail)
    assert told["found"]
    while (later := parsed(tail))["name"] != told["name"]:
        pass
    assert (later["what"], later["token"]) == ("released", told["token"])


def test_a_key_that_is_wrong_or_revoked_ends_it(cli: Cli, world: World) -> None:
    """`run` reports why it cannot renew, and again with the loss."""
    wrong = cli("events", env=service(world, "dibs_000000000000_0123456789012345678901"))
    assert (wrong.returncode, "DIBS_API_KEY" in wrong.stderr) == (77, True)
    key = world.key("acquire")
    watch = cli.start("watch", "x", env=service(world, key))
    command = ("--ttl", "2s", "--json", "--", "sh", "-c", "echo held; exec sleep 60")
    run = cli.start("run", "x", *command, env=service(world, key))
    assert line(run) == "held"
    wait_until(lambda: followers_of(world), "a stream")
    world.revoke(key)
    assert watch.wait(LONG) == 77
    code, _, err = end(run)
    told = [json.loads(each) for each in err.splitlines()]
    assert (code, [each["event"] for each in told][:2]) == (76, ["unavailable", "lost"])
    assert all("does not accept the API key" in each["message"] for each in told[:2])


def test_watch_shows_each_change(cli: Cli, world: World) -> None:
    """Of a service, and of a store."""
    plain = cli.start("watch", "x", env=service(world))
    in_json = cli.start("watch", "x", "--every", "0.1", "--json")
    assert line(plain).endswith("lock x: free")
    assert parsed(in_json)["held"] is False
    held = world.client().acquired("x")
    assert "lock x: held by web-3 for" in line(plain)
    (holder,) = parsed(in_json)["holders"]
    assert (holder["owner"], holder["note"]) == ("web-3", "")
    world.client().release("x", held)
    assert line(plain).endswith("lock x: free")
    assert interrupted(plain) == -signal.SIGINT


def test_watch_and_list_on_a_terminal(cli: Cli, world: World) -> None:
    def until(wanted: bytes) -> bytes:
        text = b""
        while wanted not in text:
            text += screen.read(4096)
        return text

    world.client().acquired("x")
    size = service(world) | {"COLUMNS": "100", "LINES": "20", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    watch = cli.start("watch", "x", env=size, stdout=theirs)
    with os.fdopen(ours, "rb", buffering=0) as screen:
        text = until(b" s, expires in ")
        assert b"\r\x1b[Klock x: held by web-3" in text
        assert b"\n" not in text, "it is one line"
        interrupted(watch)
        follow = cli.start("list", "--watch", "--every", "0.2", env=size, stdout=theirs)
        os.close(theirs)
        assert b"1 in use, 0 waiting; by waiting" in until(b"web-3")
        world.client().acquired("another")
        until(b"another")
        follow.send_signal(signal.SIGINT)
        with suppress(OSError):  # nobody has the other end any more
            while screen.read(4096):
                pass
    assert follow.wait(LONG) == -signal.SIGINT


def test_a_line_is_safe_to_look_at() -> None:
    text = shown(LockEvent("granted", b"lock:\xff\x07", 0.0, owner="a\x1b[2J", reason="b\nc"))
    assert "\x1b" not in text.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert r"lock \xff\x07" in text
    assert text.endswith(r"a\x1b[2J, b\nc")


def test_a_waiter_reports_an_outage_and_who_held_it_before(cli: Cli, world: World) -> None:
    holder = cli.hold("x", stdin=PIPE)  # in the store itself, which goes on
    waiter = cli.start("acquire", "x", "--ttl=30s", "--wait=3s", "--json", env=service(world))
    assert waiter.stderr is not None
    assert json.loads(waiter.stderr.readline())["event"] == "waiting"
    world.close()
    code, out, err = end(waiter)
    assert (code, out) == (69, "")
    outage, error = [json.loads(each) for each in err.splitlines()]
    assert (outage["event"], error["event"]) == ("unavailable", "error")
    (held,) = error["holders"]
    assert f"/{holder.pid}/" in held["owner"]
    assert f"x was last held by {held['owner']} for " in error["message"]
