"""`dibs run` at a terminal: who has it, Ctrl-C, Ctrl-Z, and the line that shows the wait."""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dibs.sync import Client
from tests.cli.processes import DIBS, LONG, PYTHON, Cli, alive
from tests.servers.waiting import wait_until

SHELL = str(Path(__file__).with_name("jobshell.py"))


class Session:
    """A terminal with a shell that runs one job."""

    def __init__(self, screen: int, shell: "subprocess.Popen[str]") -> None:
        self.shown = ""
        self._screen, self._shell = screen, shell

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, text: str) -> None:
        give_up = time.monotonic() + LONG
        while text not in self.shown:
            left = give_up - time.monotonic()
            assert select.select([self._screen], [], [], max(0.0, left))[0], self.shown
            self.shown += os.read(self._screen, 4096).decode()

    def order(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{text}\n")
        self._shell.stdin.flush()

    def report(self) -> str:
        """What the shell says of its job next."""
        assert self._shell.stdout is not None
        assert select.select([self._shell.stdout], [], [], LONG)[0], self.shown
        return self._shell.stdout.readline().strip()


@contextmanager
def session(cli: Cli, *args: str, out: str = "-", columns: int = 200) -> Iterator[Session]:
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    command = args if args[0] == "bash" else (*DIBS, *args)
    program = [sys.executable, SHELL, os.ttyname(terminal), out, *command]
    shell = cli.start(program=program, stdin=subprocess.PIPE, start_new_session=True)
    yield Session(screen, shell)
    shell.kill()
    os.close(screen)
    os.close(terminal)  # kept open until here: the screen stays readable after the shell's end


def test_the_command_has_the_terminal_and_gets_ctrl_c_once(cli: Cli) -> None:
    script = """
import os, signal, time
seen = []
signal.signal(signal.SIGINT, lambda *about: (seen.append(1), print("interrupted", flush=True)))
print("mine:", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
while not seen:
    time.sleep(0.01)  # input() would miss one that comes right before it begins to read
print("read", input())
"""
    with session(cli, "run", "x", "--", *PYTHON, script) as at:
        at.wait_for("mine: True")
        at.type("\x03")
        at.wait_for("interrupted")
        at.type("on\n")
        at.wait_for("read on")
        assert at.report() == "exited 0"
        assert at.shown.count("interrupted") == 1


@pytest.mark.parametrize(
    ("verb", "ready"),
    [
        ("run y -- sh -c 'echo ready >&2; exec sleep 60' | cat", "ready"),
        ("run x -- true", "you are next"),
        ("watch x", "held by"),
    ],
)
def test_ctrl_c_stops_the_script_too(cli: Cli, client: Client, verb: str, ready: str) -> None:
    script = f"set -o pipefail; DIBS {verb}; echo went on; sleep 60"
    with (
        client.lock("x"),
        session(cli, "bash", "-c", script.replace("DIBS", shlex.join(DIBS))) as at,
    ):
        at.wait_for(ready)
        at.type("\x03")
        assert at.report() == f"exited {-signal.SIGINT}"
        assert "went on" not in at.shown
        assert not client.lock("y").locked()
        assert client.status("x").waiting == 0


def test_a_command_that_handles_ctrl_c_has_the_last_word(cli: Cli) -> None:
    command = "trap 'exit 7' INT; echo ready; sleep 60 & wait"
    script = (
        f"trap 'echo stopped' INT; {shlex.join(DIBS)} run y -- sh -c \"{command}\"; echo code $?"
    )
    with session(cli, "bash", "-c", script) as at:
        at.wait_for("ready")
        at.type("\x03")
        at.wait_for("code 7")
        assert "stopped" not in at.shown


def test_the_wait_is_shown_on_one_line_that_goes_away(cli: Cli, client: Client) -> None:
    lease = client.lock("x").acquire()
    with session(cli, "run", "x", "--", "echo", "my turn", columns=30) as at:
        at.wait_for("\r\x1b[Kwaiting for x (1 s)")  # redrawn
        assert all(len(text) < 30 for text in at.shown.split("\r\x1b[K")[1:]), "in one line"
        lease.release()
        at.wait_for("\r\x1b[Kmy turn")
        assert at.report() == "exited 0"


def test_a_narrow_terminal_shows_whole_words_and_all_columns(cli: Cli, client: Client) -> None:
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda"
    with client.lock("long", note=words):
        with session(cli, "watch", "long", columns=60) as at:
            at.wait_for("…")
            assert at.shown.partition("…")[0].split()[-1].strip("(") in words.split()
        with session(cli, "top", columns=60) as at:
            for column in ("KIND", "EXPIRES IN", "WAITING"):
                at.wait_for(column)


def test_ctrl_z_stops_all_and_fg_goes_on(cli: Cli) -> None:
    script = "echo ready; while read a; do echo got $a; done"
    with session(cli, "run", "x", "--", "sh", "-c", script) as at:
        at.wait_for("ready")
        for word in ("one", "two"):
            at.type("\x1a")
            assert at.report() == "stopped SIGTSTP"
            if word == "two":
                at.order("bg")
                assert at.report().startswith("stopped"), "in the background it must not read"
            at.order("fg")
            at.type(f"{word}\n")
            at.wait_for(f"got {word}")
        assert "the lease ends in" in at.shown
        at.type("\x04")
        assert at.report() == "exited 0"


def test_a_command_stopped_past_its_lease_does_not_go_on(cli: Cli, client: Client) -> None:
    script = "echo pid $$ ready; read a; echo went on"
    with session(cli, "run", "x", "--ttl", "1s", "--", "sh", "-c", script) as at:
        at.wait_for("ready")
        child = int(at.shown.partition("pid ")[2].split()[0])
        at.type("\x1a")
        assert at.report() == "stopped SIGTSTP"
        wait_until(lambda: not alive(child), "the end of the stopped command")
        with client.lock("x"):
            at.order("fg")
            assert at.report() == "exited 76"
        assert "went on" not in at.shown


def test_a_command_whose_output_goes_elsewhere_gets_the_terminal_when_it_reads(cli: Cli) -> None:
    out = cli.folder / "out"
    script = "import os; print(os.tcgetpgrp(0) == os.getpgrp()); print('read', input())"
    with session(cli, "run", "x", "--", *PYTHON, script, out=str(out)) as at:
        wait_until(lambda: out.exists() and out.read_text() == "False\n", "its start")
        at.type("hello\n")
        assert at.report() == "exited 0"
    assert out.read_text() == "False\nread hello\n"
