"""`dibs list` and `show` with names in base64, without a head, and in the columns of lock services."""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dibs.sync
from dibs.cli import main
from dibs.cli.exits import FORBIDDEN, FREE, USAGE
from dibs.core.names import fingerprint
from dibs.model import Acquire
from dibs.stores.http import wire
from dibs.stores.http.names import encoded
from tests.server.world import World, b64

pytestmark = pytest.mark.once

ODD = b"jobs/\xff\t"
COLUMNS = ["LOCK-NAME", "LOCK-ID", "CLIENT-ID", "CLIENT-IP", "TTL"]


class Prints:
    """What a command line prints, by rows of what tabs divide."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> list[list[str]]:
        self._capsys.readouterr()
        assert main(list(words)) == code
        return [line.split("\t") for line in self._capsys.readouterr().out.splitlines()]

    def objects(self, *words: str) -> list[Any]:
        return [json.loads(line) for (line,) in self(*words, "--json")]

    def refused(self, *words: str) -> str:
        assert main(list(words)) == USAGE
        return self._capsys.readouterr().err


@pytest.fixture
def prints(capsys: pytest.CaptureFixture[str]) -> Prints:
    return Prints(capsys)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three locks, one with an odd name, and a semaphore."""
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    monkeypatch.setenv("DIBS_URL", url)
    with dibs.sync.connect(url) as client:
        held = [client.lock(name, label="me").acquire() for name in (b"jobs/a", ODD, b"other")]
        held.append(client.semaphore("pool", 2).acquire())
        yield
        for lease in held:
            lease.release()


def test_names_in_base64_and_no_head(prints: Prints, store: None) -> None:
    head, *rows = prints("list")
    assert head[0] == "KIND"
    assert prints("list", "--no-header")[0][:2] == ["lock", "jobs/a"]
    for word in ("--no-heading", "--no-headers"):
        assert [row[1] for row in prints("list", word)] == [row[1] for row in rows]
    found = [row[1] for row in prints("list", "--no-decode", "--no-header")]
    assert found == [encoded(name) for name in (b"jobs/a", ODD, b"other", b"pool")]
    below = prints("list", "-B", encoded(b"jobs/"), "--no-header")
    assert [row[1] for row in below] == ["jobs/a", "jobs/\\xff\\t"]
    told = prints.objects("list", "--no-decode", "other")
    assert [b64decode(each["name_base64"]) for each in told] == [b"other"]
    assert "name" not in told[0]


def test_a_semaphore_shows_how_much_of_it_is_taken(prints: Prints, store: None) -> None:
    ((kind, name, state, *_),) = prints("list", "--no-header", "pool")
    assert (kind, name) == ("semaphore", "pool")
    assert state.startswith("1 of 2: held by ")


def test_show_too(prints: Prints, store: None) -> None:
    assert prints("show", "-B", encoded(ODD))[0] == ["lock jobs/\\xff\\t: held"]
    assert prints("show", "other", "--no-decode")[0] == [f"lock {encoded(b'other')}: held"]
    assert "name_base64" in prints.objects("show", "other", "--no-decode")[0]
    assert prints("show", "-B", encoded(b"free"), code=FREE)[0] == ["lock free: free"]
    assert "-B: the name must be URL-safe base64" in prints.refused("show", "-B", "a b")
    longest = b"\xff" * 512
    assert prints("show", "-B", encoded(longest), code=FREE)
    for too_long in (["-B", encoded(longest + b"x")], ["x" * 513]):
        assert "1 to 512 bytes long; this one is 513" in prints.refused("show", *too_long)


def test_the_columns_of_lock_services(prints: Prints, store: None) -> None:
    head, *rows = prints("list", "--locks")
    assert head == COLUMNS
    assert [row[0] for row in rows] == [encoded(name) for name in (b"jobs/a", ODD, b"other")]
    _, lock_id, client_id, ip, ttl = rows[0]
    assert (len(lock_id), ip) == (24, ""), "a fingerprint; only a service knows addresses"
    assert client_id.endswith("/me")
    assert 0 < int(ttl) <= 30
    below = prints("list", "--locks", "-D", "jobs/", "--no-header")
    assert [row[0] for row in below] == ["jobs/a", "jobs/\\xff\\t"]
    assert [row[0] for row in prints("list", "--locks", "-D", "jobs/a")[1:]] == ["jobs/a"]
    assert prints("list", "--locks", "jobs/", "--no-header", "--no-decode") == rows[:2]
    assert prints("list", "--locks", "jobs", "--no-header") == [], "a name, and no prefix"
    (told,) = prints.objects("list", "--locks", "other")
    assert set(told) == {"name", "id", "info"}
    assert set(told["info"]) == {"ttl", "client-id", "ip"}


def test_what_does_not_go_together(prints: Prints, store: None) -> None:
    assert "names in base64" in prints.refused("list", "--locks", "-D", "--json")
    assert "give either --locks or" in prints.refused("list", "--locks", "--kind", "semaphore")


def test_by_a_service(prints: Prints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page; ids for administrators only."""
    world = World.over()
    try:
        monkeypatch.setenv("DIBS_URL", world.url)
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        client = world.client()
        many = [f"dir/{number:03}" for number in range(230)]
        acquires = [
            wire.to_wire(Acquire(b"lock:" + name.encode(), f"{name:x>22}", "me", 60.0))
            for name in many
        ]
        answer = client.post("/v1/batch", content=msgspec.json.encode(wire.Batch(tuple(acquires))))
        assert answer.status_code == 200
        held = client.post(
            f"/v1/locks/{b64('mine/one')}", params={"client-id": "c", "ttl": 60}
        ).json()
        assert [row[0] for row in prints("list", "--locks", "-D", "dir/", "--no-header")] == many
        assert len(prints("list", "--locks", "--no-header")) == len(many) + 1
        (row,) = prints("list", "--locks", "-D", "mine/one", "--no-header")
        assert row[:4] == ["mine/one", fingerprint(held["id"]), "c", "127.0.0.1"]
        assert prints("list", "--locks", "nobody", "--no-header") == []
        monkeypatch.setenv("DIBS_API_KEY", world.key("read", prefixes=[b"mine/"]))
        (row,) = prints("list", "--locks", "-D", "--no-header")
        assert row[:4] == ["mine/one", fingerprint(held["id"]), "c", "127.0.0.1"]
        assert prints("list", "--locks", "dir/", "--no-header") == []
        monkeypatch.setenv("DIBS_API_KEY", "dibs_" + "x" * 35)
        assert prints("list", "--locks", code=FORBIDDEN) == prints("list", code=FORBIDDEN) == []
    finally:
        world.close()


def test_what_is_missing_or_misspelt(prints: Prints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_LOCK_ID", raising=False)
    assert "Default: DIBS_LOCK_ID" in prints.refused("renew", "x", "--ttl", "5s")
    assert "Did you mean `dibs list`?" in prints.refused("lits")
    assert "Did you mean" not in prints.refused("xyzzy")
    assert "Use `dibs list --watch`." in prints.refused("top")


def test_finished_runs_of_scheduled_tasks_are_hidden(
    prints: Prints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, url = "poll@2026-11-22T02:00:00Z", f"sqlite:///{tmp_path / 'leases.db'}"
    monkeypatch.setenv("DIBS_URL", url)
    with dibs.sync.connect(url) as client:
        for name in (tick, "report"):
            with client.task_lock(name, "10m", "20m"):
                running = [row[1] for row in prints("list", "--no-header")]
                assert name in running
    assert [row[1] for row in prints("list", "--no-header")] == ["report"]
    assert [row[1] for row in prints("list", "--all", "--no-header")] == [tick, "report"]
