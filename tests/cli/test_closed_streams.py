"""Streams that are closed from the start (`>&-`), as by a careless daemon or cron."""

import os
import subprocess

import pytest

from tests.cli.processes import DIBS, PYTHON, Cli


def closed(cli: Cli, redirection: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run it with that stream closed."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *DIBS, *words],
        env=cli.environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.once
@pytest.mark.parametrize("words", [("list",), ("version",), ("run", "y", "--", "true")])
def test_without_stdout_a_verb_succeeds_all_the_same(cli: Cli, words: tuple[str, ...]) -> None:
    done = closed(cli, ">&-", *words)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.once
def test_an_id_that_nobody_could_read_is_not_acquired(cli: Cli) -> None:
    done = closed(cli, ">&-", "acquire", "d", "--ttl", "30s")
    assert done.returncode == 64
    assert "stdout is closed: the lease id would be lost" in done.stderr
    assert not cli.show("d")["held"]


@pytest.mark.once
def test_a_key_that_nobody_could_read_is_not_made(cli: Cli) -> None:
    place = ("--records", cli.url)
    asked = ("keys", "create", "--name", "ci", "--scope", "read", *place)
    done = closed(cli, ">&-", *asked)
    assert done.returncode == 64
    assert "stdout is closed: the key would be lost" in done.stderr
    assert cli("keys", "list", "--json", *place).stdout == ""


@pytest.mark.once
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_command_never_starts_with_a_stream_closed(cli: Cli, number: int) -> None:
    """Else the first file it opens is its stdout, and is written over."""
    found = cli.folder / "found"
    look = f"import os, sys; open(sys.argv[1], 'w').write(str(os.stat({number}).st_rdev))"
    done = closed(cli, f"{number}>&-", "run", "y", "--", *PYTHON, look, str(found))
    assert done.returncode == 0, done.stderr
    assert int(found.read_text()) == os.stat(os.devnull).st_rdev
