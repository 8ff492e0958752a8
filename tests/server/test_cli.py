"""`dibs events`, `watch`, `list`, `run` and `acquire` at a service, and while it is away."""

import json
import os
import pty
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from select import select
from subprocess import PIPE, Popen
from typing import IO, Any

import pytest

import dibs.sync
from dibs.cli.events import line as shown
from dibs.cli.service import Tail
from dibs.server.lock_events import LockEvent
from dibs.testing import FaultProxy
from tests.cli.processes import Cli, end, line
from tests.server.inside import followers_of, is_watched
from tests.server.world import LONG, World, acquired, b64, lock, released
from tests.servers.certificates import self_signed
from tests.servers.waiting import wait_until
from tests.stores.http.serving import Served

pytestmark = pytest.mark.once

BOTH = pytest.mark.parametrize("verb", [("events",), ("watch", "x")], ids=["events", "watch"])


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    runs = Cli(tmp_path)
    yield runs
    runs.kill_all()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.over(tmp_path) as world:
        yield world


@pytest.fixture
def way(world: World) -> Iterator[FaultProxy]:
    """A way to it that can be cut."""
    host, port = world.url.removeprefix("http://").split(":")
    with FaultProxy(host, int(port)) as way:
        yield way


def service(world: World, key: str = "", way: FaultProxy | None = None) -> dict[str, str]:
    """The environment of a user with a key."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEASE_", "DIBS_"))}
    url = way.url_for(world.url) if way else world.url
    return clean | {"DIBS_URL": url, "DIBS_API_KEY": key or world.admin_key}


def parsed(process: "Popen[str]") -> Any:
    """The next line, from JSON."""
    return json.loads(line(process))


def objects(text: str) -> list[Any]:
    return [json.loads(each) for each in text.splitlines()]


def interrupted(process: "Popen[str]") -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(LONG)


def watched(world: World) -> None:
    wait_until(lambda: is_watched(world), "a stream")


# -- events and watch -------------------------------------------------------------------------------


def test_events_of_a_service(cli: Cli, world: World) -> None:
    plain = cli.start("events", "jobs/", env=service(world))
    in_json = cli.start("events", "--json", "--renewals", env=service(world))
    wait_until(lambda: followers_of(world) == 2, "two streams")
    client = world.client()
    held = acquired(client, "jobs/1", note="why")
    client.patch(lock("jobs/1"), params={"id": held["id"], "ttl": 60})
    released(client, "jobs/1", held)
    told = [parsed(in_json) for _ in range(3)]
    assert [each["what"] for each in told] == ["granted", "renewed", "released"]
    assert {(each["name"], each["token"]) for each in told} == {("jobs/1", held["sequencer"])}
    assert "granted   lock jobs/1, web-3 (why" in line(plain)
    assert re.search(r"released  lock jobs/1, web-3 .* held for 0 s", line(plain))
    assert interrupted(plain) == interrupted(in_json) == -signal.SIGINT


@BOTH
def test_a_broken_connection_is_reported_and_replaced(
    cli: Cli, world: World, way: FaultProxy, verb: tuple[str, ...]
) -> None:
    tail = cli.start(*verb, "--json", env=service(world, way=way))
    watched(world)
    held = acquired(world.client(), "x")
    while "web-3" not in line(tail):  # so the stream stands
        pass
    way.cut()
    released(world.client(), "x", held)  # during the gap
    assert tail.stderr is not None
    told = [json.loads(tail.stderr.readline()) for _ in range(2)]
    assert [each["event"] for each in told] == ["warning", "back"]
    assert told[0]["message"].endswith("; reconnecting")
    assert told[1]["message"] == f"reconnected to {way.url_for(world.url)}"
    while (each := parsed(tail)).get("what") != "released" and each.get("held", True):
        pass
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


@BOTH
def test_a_key_that_is_wrong_or_revoked_ends_it(
    cli: Cli, world: World, verb: tuple[str, ...]
) -> None:
    wrong = cli(*verb, env=service(world, "dibs_000000000000_0123456789012345678901"))
    assert (wrong.returncode, "DIBS_API_KEY" in wrong.stderr) == (77, True)
    key = world.key("read")
    tail = cli.start(*verb, env=service(world, key))
    watched(world)
    world.revoke(key)
    assert tail.wait(LONG) == 77


@pytest.mark.parametrize("of_service", [True, False], ids=["service", "store"])
def test_watch_shows_each_change(cli: Cli, world: World, of_service: bool) -> None:
    env = service(world) if of_service else cli.environment
    plain = cli.start("watch", "x", "--every", "0.1", env=env)
    in_json = cli.start("watch", "x", "--every", "0.1", "--json", env=env)
    assert line(plain).endswith("lock x: free")
    assert parsed(in_json)["held"] is False
    held = acquired(world.client(), "x")
    assert "lock x: held by web-3 for" in line(plain)
    (holder,) = parsed(in_json)["holders"]
    assert (holder["owner"], holder["note"]) == ("web-3", "")
    released(world.client(), "x", held)
    assert line(plain).endswith("lock x: free")
    assert interrupted(plain) == -signal.SIGINT


def until(screen: IO[bytes], wanted: bytes) -> bytes:
    text = b""
    while wanted not in text:
        text += screen.read(4096)
    return text


def test_watch_and_list_on_a_terminal(cli: Cli, world: World) -> None:
    acquired(world.client(), "x")
    size = {"COLUMNS": "100", "LINES": "20", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    watch = cli.start("watch", "x", env=service(world) | size | {"COLUMNS": "60"}, stdout=theirs)
    with os.fdopen(ours, "rb", buffering=0) as screen:
        text = until(screen, b" s, expires in ")
        assert b"\r\x1b[Klock x: held by web-3" in text
        assert b"\n" not in text, "it is one line"
        interrupted(watch)
        follow = cli.start(
            "list", "--watch", "--every", "0.2", env=service(world) | size, stdout=theirs
        )
        os.close(theirs)
        assert b"1 in use, 0 waiting; by waiting" in until(screen, b"web-3")
        acquired(world.client(), "another")
        until(screen, b"another")
        os.kill(follow.pid, signal.SIGINT)
        with suppress(OSError):  # nobody has the other end any more
            while screen.read(4096):
                pass
    assert follow.wait(LONG) == -signal.SIGINT
    in_pipe = cli("list", "--watch")
    assert in_pipe.returncode == 64
    assert "needs a terminal; in a pipe use `dibs events`" in in_pipe.stderr


def test_list_sorts(cli: Cli, world: World) -> None:
    client = world.client()
    acquired(client, "pool/a", capacity=3)
    acquired(client, "b", note="why", ttl=600)

    def names(order: str) -> list[str]:
        rows = cli("list", "--sort", order, "--no-header", env=service(world)).stdout.splitlines()
        return [row.split("\t")[1] for row in rows]

    assert names("name") == ["b", "pool/a"]
    assert names("expires") == ["pool/a", "b"]
    assert sorted(names("held")) == sorted(names("waiting")) == ["b", "pool/a"]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"token": 5, "slots": (2,), "waited": 3.0}, "token 5, slots 2, after 3 s in the queue"),
        ({"owner": "a\x1b[2J", "reason": "b\nc"}, r"a\x1b[2J, b\nc"),
        ({"note": "only"}, "(only)"),
    ],
)
def test_a_line_is_safe_to_look_at(event: dict[str, Any], told: str) -> None:
    text = shown(LockEvent("granted", b"lock:\xff\x07", 0.0, **event))
    assert "\x1b" not in text.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert r"lock \xff\x07" in text
    assert text.endswith(told)


# -- a stream, for as long as it takes --------------------------------------------------------------


def take(tail: Tail, kind: str) -> None:
    """What comes until it is of that kind."""
    while (told := tail.take(LONG)) is None or told.kind != kind:
        assert told is not None, "the stream is silent"


@pytest.mark.serial  # it takes a port that was given back, twice
@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("/events", "hello"),
        pytest.param(f"/watch/locks/{b64('x')}", "status", marks=pytest.mark.long),
    ],
)
def test_a_stream_resumes_after_the_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, first: str
) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.MOST_SPREAD", 0.05)
    world = World.over(tmp_path)
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
    port = int(world.url.rpartition(":")[2])
    with closing(Tail(world.url, path)) as tail:
        take(tail, first)
        world.close()
        with socket.create_server(("127.0.0.1", port)) as nobody:

            def refuse() -> None:
                for _ in range(4):
                    nobody.accept()[0].close()

            nobody.settimeout(LONG)
            refusing = threading.Thread(target=refuse)
            refusing.start()
            while refusing.is_alive():
                tail.take(0.05)
        with World.over(tmp_path, listen=f"127.0.0.1:{port}"):
            take(tail, first)


def test_over_tls_a_stream_takes_no_longer_than_asked(tmp_path: Path) -> None:
    served = Served(certificate=self_signed(tmp_path / "tls" / "server.pem"))
    with closing(served), closing(Tail(served.url, "/events")) as tail:
        take(tail, "hello")
        assert tail.take(0.05) is None


# -- run and acquire --------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["server", "key"])
def test_run_reports_why_it_cannot_renew_and_again_with_the_loss(
    cli: Cli, world: World, of: str
) -> None:
    key = world.key("acquire")
    command = ("--ttl", "2s", "--json", "--", "sh", "-c", "echo held; exec sleep 60")
    run = cli.start("run", "x", *command, env=service(world, key))
    assert line(run) == "held"
    if of == "key":
        world.revoke(key)
    else:
        world.close()
    code, _, err = end(run)
    told = objects(err)
    assert (code, [each["event"] for each in told][:2]) == (76, ["unavailable", "lost"])
    why = "does not accept the API key" if of == "key" else "nobody listens there"
    assert all(why in each["message"] for each in told[:2])


def test_a_ttl_that_the_service_does_not_grant_is_wrong_usage(cli: Cli, world: World) -> None:
    for verb in (
        ("run", "x", "--ttl", "2d", "--", "true"),
        ("acquire", "x", "--ttl", "2d"),
        ("acquire", "x", "--ttl", "0.1"),
    ):
        done = cli(*verb, env=service(world))
        assert (done.returncode, done.stdout) == (64, ""), done.stderr
        assert "`ttl` must be" in done.stderr


def test_waiters_report_an_outage_and_who_held_it_before(cli: Cli, world: World) -> None:
    holder = cli.hold("x", stdin=PIPE)  # in the store itself, which goes on
    wait = ("--wait", "4s", "--json")
    waiters = [
        cli.start("run", "x", *wait, "--", "true", env=service(world)),
        cli.start("acquire", "x", "--ttl", "30s", *wait, env=service(world)),
    ]
    for waiter in waiters:
        assert waiter.stderr is not None
        assert json.loads(waiter.stderr.readline())["event"] == "waiting"
    world.close()
    for code, out, err in map(end, waiters):
        told = objects(err)
        assert (code, out) == (69, "")
        assert [each["event"] for each in told] == ["unavailable", "error"]
        assert all("nobody listens there" in each["message"] for each in told)
        (held,) = told[1]["holders"]
        assert f"/{holder.pid}/" in held["owner"]
        assert f"x was last held by {held['owner']} for " in told[1]["message"]
