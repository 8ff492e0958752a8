"""Signals to `dibs`: they reach the command of `run`, or end the wait."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from dibs.cli.signals import Interrupted, Signals
from dibs.sync import Client
from tests.cli.processes import DIBS, PYTHON, Cli, end, line
from tests.servers.waiting import wait_until

FORWARDED = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM")

TRAPS = """
import signal, sys, time
seen = []
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, frame: seen.append(number))
print("ready", flush=True)
for name in sys.argv[1:]:
    while not seen:
        time.sleep(0.01)
    print(signal.Signals(seen.pop()).name, flush=True)
sys.exit(7)
"""


def ignoring(name: str) -> list[str]:
    """`dibs` with a signal ignored, as `nohup` starts it."""
    ignore = f"signal.signal(signal.{name}, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    return [*PYTHON, f"import os, signal, sys; {ignore}", *DIBS]


def test_signals_reach_the_command_which_decides(cli: Cli) -> None:
    run = cli.start("run", "x", "--", *PYTHON, TRAPS, *FORWARDED)
    assert line(run) == "ready"
    for name in FORWARDED:
        run.send_signal(signal.Signals[name])
        assert line(run) == name
    assert end(run)[:2] == (7, "")
    assert not cli.status("x").holders


def test_a_signal_reaches_what_the_command_started(cli: Cli) -> None:
    run = cli.start("run", "x", "--", "sh", "-c", "sleep 60 & echo ready; wait; echo over")
    assert line(run) == "ready"
    run.terminate()
    code, out, _ = end(run)  # ends only once nobody has its stdout any more
    assert (code, out) == (128 + signal.SIGTERM, "")


def test_a_run_whose_command_sigint_ends_dies_of_it_too(cli: Cli) -> None:
    """So that a shell or `make` above stops, too; `$?` is 130. Others of our group get none."""
    command = ["run", "y", "--", *DIBS, "run", "x", "--"]
    run = cli.start(*command, "sh", "-c", "echo ready; exec sleep 60")
    assert line(run) == "ready"
    run.send_signal(signal.SIGINT)
    assert end(run)[0] == -signal.SIGINT
    assert not cli.status("x").holders
    dies = "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)"
    done = cli("run", "x", "--", *PYTHON, dies, program=ignoring("SIGINT"))
    assert done.returncode == 128 + signal.SIGINT, "it was ignored at the start"


RUN = ("run", "x", "--", "echo", "never")
ACQUIRE = ("acquire", "x", "--ttl", "60", "--wait", "1h")


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (RUN, signal.SIGINT, -signal.SIGINT),
        (RUN, signal.SIGHUP, 128 + signal.SIGHUP),
        (ACQUIRE, signal.SIGINT, -signal.SIGINT),
        (ACQUIRE, signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_a_signal_while_waiting_leaves_the_queue(
    cli: Cli, client: Client, words: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    with client.lock("x"):
        waiter = cli.start(*words)
        wait_until(lambda: client.status("x").waiting, "a place in the queue")
        waiter.send_signal(number)
        ended, out, err = end(waiter)
        assert (ended, out) == (code, "")
        assert "Traceback" not in err
        assert client.status("x").waiting == 0


def test_a_signal_that_was_ignored_stays_so(cli: Cli) -> None:
    """As under `nohup`, for us and for the command."""
    script = "echo ready; kill -HUP $$; read x; exit 5"
    how: Any = {"stdin": subprocess.PIPE, "program": ignoring("SIGHUP")}
    run = cli.start("run", "x", "--", "sh", "-c", script, **how)
    assert line(run) == "ready"
    run.send_signal(signal.SIGHUP)
    assert end(run)[0] == 5


def test_exit_codes_are_known_where_sigchld_is_ignored(cli: Cli) -> None:
    """Daemons often ignore it, and what they start does too: the kernel then keeps no exit code."""
    command = ("run", "-q", "x", "--", "test", "-e", "/none")
    done = cli(*command, program=ignoring("SIGCHLD"))
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.usefixtures("verb")  # which restores the handlers
def test_a_signal_that_got_lost_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter drops what a handler raises within a finalizer."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_value.signum))

    class Bystander:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    signals = Signals()
    signals.install()
    Bystander()
    with pytest.raises(Interrupted) as again:
        signals.check()
    assert lost == [again.value.signum] == [signal.SIGTERM]


def test_a_store_that_hangs_at_the_end_is_left_behind(cli: Cli) -> None:
    program = """
import atexit, sys, threading
from dibs.cli.exits import leave, leave_within
held = threading.Lock()
held.acquire()
atexit.register(held.acquire)
leave_within(0.2, 7)
sys.exit(leave(9))
"""
    done = cli(program=[sys.executable, "-c", program])
    assert done.returncode == 7
    assert "could not close the store within 0.2 s" in done.stderr
