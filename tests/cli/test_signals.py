"""Signals to `dibs run`: they reach the command, or end the wait."""

import signal
import subprocess
import sys
import time

import pytest

from tests.cli.processes import DIBS, LONG, PYTHON, Cli, end, line
from tests.servers.waiting import wait_until

TRAPS = """
import signal, sys, time
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(7)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), told)
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
def test_a_signal_reaches_the_command_which_has_the_last_word(cli: Cli, name: str) -> None:
    run = cli.start("run", "x", "--", *PYTHON, TRAPS)
    assert line(run) == "ready"
    run.send_signal(signal.Signals[name])
    assert end(run)[:2] == (7, f"{name}\n")
    assert cli("show", "x").returncode == 1


def test_a_command_that_a_signal_ends_is_told_as_128_and_its_number(cli: Cli) -> None:
    run = cli.start("run", "x", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert line(run) == "ready"
    run.terminate()
    assert end(run)[0] == 128 + signal.SIGTERM


def test_a_signal_reaches_what_the_command_started(cli: Cli) -> None:
    run = cli.start("run", "x", "--", "sh", "-c", "sleep 60 & echo ready; wait; echo over")
    assert line(run) == "ready"
    run.terminate()
    code, out, _ = end(run)  # ends only once nobody has its stdout any more
    assert (code, out) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(
    "command", [["run", "x", "--"], ["run", "y", "--", *DIBS, "run", "x", "--"]]
)
def test_a_command_that_sigint_ends_ends_us_by_it(cli: Cli, command: list[str]) -> None:
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


@pytest.mark.parametrize("name", FORWARDED)
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
        [
            *NOHUP,
            *DIBS,
            "run",
            "x",
            "--",
            "sh",
            "-c",
            "echo ready; kill -HUP $$; read x; exit 5",
        ],
        env=cli.environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert line(run) == "ready"
    run.send_signal(signal.SIGHUP)
    assert end(run)[0] == 5


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("x", "--", "true"), 0),
        (("x", "--", "sh", "-c", "exit 3"), 3),
        (("x", "--", "no-such-command"), 127),
        (("-n", "held", "--", "true"), 75),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_an_exit_code_is_known_where_sigchld_is_ignored(
    cli: Cli, words: tuple[str, ...], code: int
) -> None:
    cli.hold("held", stdin=subprocess.PIPE)
    done = subprocess.run(
        [*WITHOUT_CHILDREN, *DIBS, "run", *words],
        env=cli.environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert (done.returncode, "unexpected" in done.stderr) == (code, False)
