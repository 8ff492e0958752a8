"""`dibs restrict` and `dibs move`, against a server."""

import io
import json
import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from dibs.cli import main, restrict
from dibs.cli.exits import USAGE
from dibs.server.placement.rules import PlacementSettings
from tests.server.placement.asking import acquired, released
from tests.server.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World.over(
        leases="",
        placement=tuple(
            PlacementSettings(
                name=name, provider=provider, region=region, url=f"memory://{uuid4()}"
            )
            for name, provider, region in (("here", "AWS", "DE"), ("there", "GCP", "US"))
        ),
        placement_fresh=0.5,
    )
    monkeypatch.setenv("DIBS_URL", found.url)
    monkeypatch.setenv("DIBS_API_KEY", found.admin_key)
    yield found
    found.close()


def test_restrictions_by_hand(world: World, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_bad_input_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restrict", "set", "locks", "shop", "--region", "atlantis"]) == USAGE
    assert "unknown region 'atlantis'" in capsys.readouterr().err
    assert main(["restrict", "set", "locks", "shop", "--region", "XA"]) == USAGE
    assert "no placement is allowed for shop/" in capsys.readouterr().err
    assert main(["restrict", "set", "locks", "/"]) == USAGE
    for deadline in ("0s", "soon", "31d"):
        assert main(["move", "shop/", "--to", "there", "--deadline", deadline]) == USAGE
        assert "--deadline" in capsys.readouterr().err
    assert main(["move", "shop/", "--to", "moon"]) == USAGE
    assert "placements: here, there" in capsys.readouterr().err


def test_without_a_service_it_asks_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIBS_URL", "redis://localhost")
    assert main(["move", "shop/"]) == USAGE
    assert "no service given" in capsys.readouterr().err


@pytest.mark.once
def test_everything_moves(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["move", "/"]) == 0
    assert capsys.readouterr().out == "/ lives at here\n"
    assert main(["move", "/", "--to", "there", "--wait"]) == 0
    told = capsys.readouterr()
    assert told.out == "/ lives at there\n"
    assert "/ moves from here to there" in told.err


class Terminal(io.StringIO):
    """Somebody who answers."""

    def isatty(self) -> bool:
        return True


def test_it_asks_before_leases_would_be_revoked(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = acquired(world.client(), "shop/x")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert main(["move", "shop/", "--to", "there"]) != 0
    assert "1 name in shop/ is in use. New acquires are refused" in capsys.readouterr().err
    assert main(["move", "shop/"]) == 0
    assert capsys.readouterr().out == "shop/ lives at here\n"
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(["move", "shop/", "--to", "there"]) == 0
    assert main(["move", "shop/", "--to", "there", "--yes", "--deadline", "never"]) == 0
    assert "shop/ moves from here to there once it is idle" in capsys.readouterr().out
    released(world.client(), "shop/x", held)
    assert main(["move", "shop/", "--wait"]) == 0
    assert capsys.readouterr().out == "shop/ lives at there\n"


def test_a_move_in_a_log_prints_few_lines(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its times change all the while."""
    held, client = acquired(world.client(), "shop/x"), world.client()
    looks = 0

    def look_again(seconds: float) -> None:
        nonlocal looks
        looks += 1
        threading.Event().wait(seconds)
        if looks == 4:
            released(client, "shop/x", held)

    monkeypatch.setattr("time.sleep", look_again)
    monkeypatch.setattr(restrict, "_LOOKS_EVERY", 1.1)
    assert main(["move", "shop/", "--to", "there", "--wait"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert looks >= 4
    assert len([each for each in lines if "is in use" in each]) <= 2, lines
