"""A stdout that takes nothing, as on a disk without room."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import DIBS, Cli

FULL = Path("/dev/full")

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here"),
]

UNWRITTEN = 74
GOOD = ("keys", "create", "--name", "ci", "--scope", "read")


def full(cli: Cli, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run it with no room for what it says."""
    with FULL.open("w") as stdout:
        return subprocess.run(
            [*DIBS, *words],
            env=cli.environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "--json"),
        ("show", "x"),
        ("version",),
        ("--version",),
        ("list", "--help"),
    ],
    ids=" ".join,
)
def test_it_is_said_and_is_no_bug(cli: Cli, words: tuple[str, ...]) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    done = full(cli, *words)
    assert done.returncode == UNWRITTEN
    (told,) = done.stderr.splitlines()
    assert "cannot write to stdout: No space left on device" in told


def test_a_lease_whose_id_nobody_has_read_is_released(cli: Cli) -> None:
    done = full(cli, "acquire", "x", "--ttl", "1h")
    assert done.returncode == UNWRITTEN
    assert "cannot write to stdout" in done.stderr
    assert not cli.show("x")["held"]


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["plain", "JSON"])
def test_a_key_that_nobody_has_seen_is_revoked(cli: Cli, as_json: tuple[str, ...]) -> None:
    place = ("--records", cli.url)
    done = full(cli, *GOOD, *place, *as_json)
    assert done.returncode == UNWRITTEN
    assert "nobody has seen it, so it was revoked" in done.stderr
    assert "cannot write to stdout" in done.stderr
    assert "It is shown only once" not in done.stderr
    assert cli("keys", "list", "--json", *place).stdout == ""


def test_nor_does_a_key_last_that_goes_into_a_pipe_that_nobody_reads(cli: Cli) -> None:
    place = ("--records", cli.url)
    process = cli.start(*GOOD, *place)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert "nobody has seen it, so it was revoked" in err
    assert cli("keys", "list", "--json", *place).stdout == ""
