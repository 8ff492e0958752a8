"""Signals to `dibs run`: they reach the command, or end the wait."""

import signal
import subprocess
import sys
import time

import pytest

from tests.cli.processes import DIBS, LONG, PYTHON, Cli, end, line
from tests.runtime.scripts import run_script
from tests.servers.waiting import wait_until

TRAPS = """
import signal, sys, time
def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(7)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), handle)
print("ready", flush=True)
while True:
    time.sleep(60)
"""

NOHUP = [
    *PYTHON,
    """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
""",
]

WITHOUT_CHILDREN = [*PYTHON, NOHUP[-1].replace("SIGHUP", "SIGCHLD")]
"""Daemons often ignore SIGCHLD, and what they start does too: the kernel then keeps no exit code."""

FORWARDED = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_reaches_the_command_which_decides(cli: Cli, name: str) -> None:
    run = cli.start("run", "x", "--", *PYTHON, TRAPS)
    assert line(run) == "ready"
    run.send_signal(signal.Signals[name])
    assert end(run)[:2] == (7, f"{name}\n")
    assert cli("show", "x").returncode == 1


def test_a_signal_reaches_what_the_command_started(cli: Cli) -> None:
    run = cli.start("run", "x", "--", "sh", "-c", "sleep 60 & echo ready; wait; echo over")
    assert line(run) == "ready"
    run.terminate()
    code, out, _ = end(run)  # ends only once nobody has its stdout any more
    assert (code, out) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(
    "command", [["run", "x", "--"], ["run", "y", "--", *DIBS, "run", "x", "--"]]
)
def test_a_run_whose_command_sigint_ends_dies_of_it_too(cli: Cli, command: list[str]) -> None:
    """So that a shell or `make` above stops, too; `$?` is 130. Others of our group get none."""
    run = cli.start(*command, "sh", "-c", "echo ready; exec sleep 60")
    assert line(run) == "ready"
    run.send_signal(signal.SIGINT)
    assert end(run)[0] == -signal.SIGINT
    assert cli("show", "x").returncode == 1
    ignored = [
        *PYTHON,
        "import signal, os; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)",
    ]
    nohup = [NOHUP[-1].replace("SIGHUP", "SIGINT"), *DIBS, *command, *ignored]
    done = subprocess.run([*PYTHON, *nohup], env=cli.environment, check=False, timeout=LONG)
    assert done.returncode == 128 + signal.SIGINT, "it was ignored at the start"


@pytest.mark.once
def test_an_interrupt_while_it_starts_is_quiet(cli: Cli) -> None:
    cli("run", "x", "--", "true")  # else `list` would say that there is no file
    for delay in (0.0, 0.02, 0.04, 0.08, 0.16):
        program = "import sys; from dibs.cli import main; print(1, flush=True); sys.exit(main())"
        starting = subprocess.Popen(
            [sys.executable, "-c", program, "list"],
            env=cli.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert line(starting) == "1"
        time.sleep(0.01 + delay)
        starting.send_signal(signal.SIGINT)
        code, _, err = end(starting)
        assert (code, err) in [(-signal.SIGINT, ""), (0, "")]


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_signal_while_waiting_leaves_the_queue(cli: Cli, name: str) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    waiter = cli.start("run", "x", "--", "echo", "never")
    wait_until(lambda: cli.show("x")["waiting"] == 1, "a place in the queue")
    waiter.send_signal(signal.Signals[name])
    code, out, err = end(waiter)
    expected = -signal.SIGINT if name == "SIGINT" else 128 + signal.Signals[name]
    assert (code, out) == (expected, "")
    assert "Traceback" not in err
    assert cli.show("x")["waiting"] == 0


def test_a_signal_that_was_ignored_stays_so(cli: Cli) -> None:
    """As under `nohup`, for us and for the command."""
    run = subprocess.Popen(
        [*NOHUP, *DIBS, "run", "x", "--", "sh", "-c", "echo ready; kill -HUP $$; read x; exit 5"],
        env=cli.environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert line(run) == "ready"
    run.send_signal(signal.SIGHUP)
    assert end(run)[0] == 5


def test_exit_codes_are_known_where_sigchld_is_ignored(cli: Cli) -> None:
    cli.hold("held", stdin=subprocess.PIPE)
    for words, code in (
        ("x -- true", 0),
        ("x -- test -e /none", 1),
        ("x -- no-such-command", 127),
        ("-n held -- true", 75),
    ):
        done = subprocess.run(
            [*WITHOUT_CHILDREN, *DIBS, "run", *words.split()],
            env=cli.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert (done.returncode, "unexpected" in done.stderr) == (code, False)


# ---- the end of the interpreter -------------------------------------------------------------------


def test_a_signal_that_got_lost_is_raised_again() -> None:
    """The interpreter drops what a handler raises within a finalizer."""
    found = run_script(
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
    assert found == ["lost 15", "again 15"]


def leaving(code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", LEAVING + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)


LEAVING = """
import atexit, sys, threading
from dibs.cli.exits import leave, leave_within
import temporalio
"""


def test_a_store_that_hangs_at_the_end_is_left_behind() -> None:
    done = leaving("""
held = threading.Lock()
held.acquire()
atexit.register(held.acquire)
leave_within(0.2, 7)
leave_within(3600, 8)  # the first counts
sys.exit(leave(9))
""")
    assert done.returncode == 7
    assert "could not close the store within 0.2 s" in done.stderr


def test_daemon_threads_are_not_waited_for() -> None:
    done = leaving("""
threading.Thread(target=threading.Event().wait, daemon=True).start()
atexit.register(print, "closed")
sys.exit(leave(5))
""")
    assert (done.returncode, done.stdout, done.stderr) == (5, "closed\n", "")
