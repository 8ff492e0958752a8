"""`dibs restrict` and `dibs move`, against a server."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from dibs.cli import main
from dibs.cli.exits import USAGE
from tests.server.placement.asking import acquired, memory, released
from tests.server.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    places = (
        memory("here", provider="AWS", region="DE"),
        memory("there", provider="GCP", region="US"),
    )
    with closing(World.over(leases="", placement=places, placement_fresh=0.5)) as world:
        monkeypatch.setenv("DIBS_URL", world.url)
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        yield world


def test_restrictions(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restrict", "get", "locks", "shop/"]) == 1
    assert "shop/ has no restriction" in capsys.readouterr().err
    given = ["--region", "europe,XN", "--exclude-provider", "gcp", "--provider", "all"]
    assert main(["restrict", "put", "locks", "shop", *given]) == 0
    assert capsys.readouterr().out == "Set a restriction on directory shop in locks API\n"
    assert main(["restrict", "ls"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("\t")[:3] == ["API", "DIRECTORY", "STATE"]
    assert row.split("\t") == ["Locks", "shop/", "Enforced", "[XE,XN]", "[]", "[]", "[GCP]", "here"]
    assert main(["restrict", "ls", "--no-header"]) == 0
    assert capsys.readouterr().out == f"{row}\n"
    assert main(["restrict", "show", "locks", "c2hvcA", "-B", "--no-decode"]) == 0
    assert "\tc2hvcA\t" in capsys.readouterr().out
    assert main(["restrict", "list", "locks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["details"]["providers_denied"] == ["GCP"]
    assert main(["restrict", "rm", "locks", "shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "deleted_restriction": {"api": "locks", "directory": "shop"}
    }
    assert main(["restrict", "delete", "locks", "shop"]) == 1


def test_wrong_usage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (
        *("restrict set locks shop --region atlantis", "restrict set locks shop --region XA"),
        *("restrict set locks /", "move shop/ --to moon"),
        *(f"move shop/ --to there --deadline {each}" for each in ("0s", "soon", "31d")),
    ):
        assert main(words.split()) == USAGE, words
    monkeypatch.setenv("DIBS_URL", "redis://localhost")
    assert main(["move", "shop/"]) == USAGE, "it needs a service"


@pytest.mark.once
def test_everything_moves(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["move", "/"]) == 0
    assert capsys.readouterr().out == "/ lives at here\n"
    assert main(["move", "/", "--to", "there", "--wait"]) == 0
    output = capsys.readouterr()
    assert output.out == "/ lives at there\n"
    assert "/ moves from here to there" in output.err


class Terminal(io.StringIO):
    """Somebody who answers."""

    def isatty(self) -> bool:
        return True


def test_it_asks_before_leases_would_be_revoked(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = acquired(world.client(), "shop/x")
    for answer, code in (("n", 1), ("y", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        assert (main(["move", "shop/", "--to", "there"]) != 0) == bool(code)
        assert "1 name in shop/ is in use. New acquires are refused" in capsys.readouterr().err
        assert main(["move", "shop/"]) == 0
        assert (capsys.readouterr().out == "shop/ lives at here\n") == bool(code)
    assert main(["move", "shop/", "--to", "there", "--yes", "--deadline", "never"]) == 0
    assert "shop/ moves from here to there once it is idle" in capsys.readouterr().out
    looks = 0

    def look_again(seconds: float) -> None:
        nonlocal looks
        looks += 1
        threading.Event().wait(seconds)
        if looks == 4:
            released(world.client(), "shop/x", held)

    monkeypatch.setattr("time.sleep", look_again)
    assert main(["move", "shop/", "--wait"]) == 0
    output = capsys.readouterr()
    assert output.out == "shop/ lives at there\n"
    assert looks >= 4
    in_use = [line for line in output.err.splitlines() if "is in use" in line]
    assert len(in_use) <= 2, "few lines in a log, although its times change all the while"
