"""`dibs restrict` and `dibs move`, against a server."""

import io
import json
import threading
from collections.abc import Callable

import pytest

from dibs.cli import main
from dibs.cli.exits import USAGE
from dibs.server.placement import drain
from tests.server.placement.asking import acquired, until
from tests.server.world import Patch, World

type Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: Patch) -> Run:
    """Runs `dibs` with these words: its exit code, output and messages."""
    monkeypatch.setenv("DIBS_URL", world.url)
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)

    def run(words: str) -> tuple[int, str, str]:
        code = main(words.split())
        return code, *capsys.readouterr()

    return run


def test_restrictions(run: Run) -> None:
    code, _, message = run("restrict get locks shop/")
    assert (code, "shop/ has no restriction" in message) == (1, True)
    given = "--region europe,XN --exclude-provider gcp --provider all"
    code, output, _ = run(f"restrict put locks shop {given}")
    assert (code, output) == (0, "Set a restriction on directory shop in locks API\n")
    head, row = run("restrict ls")[1].splitlines()
    assert head.split("\t")[:3] == ["API", "DIRECTORY", "STATE"]
    assert row.split("\t") == ["Locks", "shop/", "Enforced", "[XE,XN]", "[]", "[]", "[GCP]", "home"]
    assert "\tc2hvcA\t" in run("restrict show locks c2hvcA -B --no-decode --no-header")[1]
    seen = json.loads(run("restrict list locks --json")[1])
    assert seen["details"]["providers_denied"] == ["GCP"]
    deleted = json.loads(run("restrict rm locks shop --json")[1])
    assert deleted == {"deleted_restriction": {"api": "locks", "directory": "shop"}}
    assert run("restrict delete locks shop")[0] == 1


def test_wrong_usage(run: Run, monkeypatch: Patch) -> None:
    for words in (
        *("restrict set locks shop --region atlantis", "restrict set locks shop --region XA"),
        *("restrict set locks /", "restrict set locks shop/", "move shop/ --to moon"),
        *(f"move shop/ --to away --deadline {each}" for each in ("0s", "soon", "31d")),
    ):
        assert run(words)[0] == USAGE, words
    assert run("restrict set locks shop --region XE")[0] == 0
    code, _, message = run("move shop/ --to away")
    assert (code, "by the restriction on shop/" in message) == (USAGE, True)
    assert run("restrict delete locks shop")[0] == 0
    monkeypatch.setenv("DIBS_URL", "redis://localhost")
    assert run("move shop/")[0] == USAGE, "it needs a service"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_asks_before_leases_would_be_revoked_and_waits(
    world: World, run: Run, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(drain, "REST", 1.0)
    held = acquired(world.client(), "shop/x")
    for answer, is_ordered in (("n", False), ("y", True)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        code, _, message = run("move shop/ --to away")
        assert (code == 0) == is_ordered
        assert "1 name in shop/ is in use. New acquires are refused" in message
        assert (run("move shop/")[:2] == (0, "shop/ lives at home\n")) != is_ordered
    until(lambda: "New acquires are refused" in run("move shop/")[1])
    until(lambda: run("run -n shop/y -- true")[0] == 69)  # the server has read it, too
    code, _, message = run("run -w 0.5s shop/y -- true")
    assert (code, message.count("is moving to another store")) == (69, 2), "once, and in the error"
    code, output, _ = run("move shop/ --to away --yes --deadline never")
    assert (code, "shop/ moves from home to away once it is idle" in output) == (0, True)
    release = threading.Timer(1.0, world.client().release, ("shop/x", held))
    release.start()
    code, output, message = run("move shop/ --wait")
    release.join()
    assert (code, output) == (0, "shop/ lives at away\n")
    in_use = [line for line in message.splitlines() if "is in use" in line]
    assert len(in_use) <= 2, "few lines in a log, although its times change all the while"
    assert run("move /")[:2] == (0, "/ lives at home\n")
    code, output, message = run("move / --to away --wait")
    assert (code, output, "/ moves from home to away" in message) == (0, "/ lives at away\n", True)
