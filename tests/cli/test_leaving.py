"""How commands end: with a message, when a stream is closed, when a store is busy."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from dibs.sync import connect
from tests.cli.processes import DIBS, LONG, PYTHON, Cli
from tests.runtime.scripts import run_script


def test_a_signal_that_got_lost_is_raised_again() -> None:
    """The interpreter drops what a handler raises within a finalizer."""
    told = run_script(
        """
        import os, signal, sys
        from dibs.cli.signals import Interrupted, Signals

        class Bystander:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                print("goes on")

        signals = Signals()
        signals.install()
        signals.check()
        sys.unraisablehook = lambda lost: print("lost", lost.exc_value.signum)
        Bystander()
        try:
            signals.check()
        except Interrupted as again:
            print("again", again.signum)
        """
    )
    assert told == ["lost 15", "again 15"]


def test_what_hangs_at_the_end_is_left_behind() -> None:
    code = """if True:
        import atexit, sys, threading
        from dibs.cli.exits import leave, leave_within
        import temporalio

        held = threading.Lock()
        held.acquire()
        atexit.register(held.acquire)
        leave_within(0.2, 7)
        leave_within(3600, 8)  # the first counts
        sys.exit(leave(9))
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 7
    assert "could not close the store within 0.2 s" in done.stderr


def test_daemons_are_not_waited_for() -> None:
    code = """if True:
        import atexit, sys, threading
        from dibs.cli.exits import leave
        import temporalio

        threading.Thread(target=threading.Event().wait, daemon=True).start()
        atexit.register(print, "closed")
        sys.exit(leave(5))
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, "closed\n", "")


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
    cli("run", "x", "--", "true")  # else `list` would say that there is no file
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
