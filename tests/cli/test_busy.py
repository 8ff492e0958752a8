"""`dibs run` on a key that somebody's open transaction keeps: not acquired, in good time."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from dibs.sync import connect
from tests.cli.processes import Cli


@pytest.fixture
def kept(cli: Cli, postgres_url: str) -> Iterator[Cli]:
    """A command line whose name `x` is kept by a transaction that has not ended."""
    cli.url = postgres_url
    with connect(postgres_url) as client, psycopg.connect(postgres_url) as connection:
        client.lock("x", ttl="60s").acquire(within=connection)
        yield cli
        connection.rollback()


@pytest.mark.parametrize("options", [["--no-wait"], ["--wait", "2s"]])
def test_it_was_not_acquired(kept: Cli, options: list[str]) -> None:
    began = time.monotonic()
    done = kept("run", "x", *options, "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, ""), done.stderr
    assert "a transaction that has not ended" in done.stderr
    assert time.monotonic() - began < 8
    assert kept("run", "x", *options, "-E", "9", "--", "echo", "never").returncode == 9


def test_another_name_is_not_held_up(kept: Cli) -> None:
    assert kept("run", "y", "--no-wait", "--", "echo", "held").stdout == "held\n"
