"""The warden by itself: no store, no lease, a parent that dies or falls silent."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.processes import LONG, alive, line, state
from tests.servers.waiting import wait_until

PARENT = """
import os, signal, sys, time
from dibs.cli.warden import Warden, now
from dibs.cli.supervisor import RunningCommand
warden = Warden.start()
print(warden.group, flush=True)
if sys.argv[1:]:
    term, kill = map(float, sys.argv[1:3])
    warden.tell(now() + term, now() + kill)
    child = RunningCommand.start(sys.argv[3:], dict(os.environ), warden.group)
for order in sys.stdin:
    word, *numbers = order.split()
    if word == "tell":
        warden.tell(*(now() + float(number) for number in numbers))
    elif word == "outdated":
        for _ in range(int(numbers[0])):
            warden.tell(now() - 2, now() - 1)
    elif word == "unwaited":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif word == "dismiss":
        warden.dismiss()
    elif word == "code":
        print(child.change().code)
    print("done", flush=True)
"""

STUBBORN = ["sh", "-c", "trap 'echo asked' TERM; echo $$; while :; do sleep 0.02; done"]
POLITE = ["sh", "-c", "echo $$; exec sleep 60"]


@contextmanager
def parent(*args: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LONG)


def order(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def test_it_ends_with_a_parent_that_never_started_anything() -> None:
    with parent() as process:
        warden = int(line(process))
        assert alive(warden)
        process.kill()
        wait_until(lambda: not alive(warden), "the warden's end")


@pytest.mark.parametrize("words", [300, 5000], ids=["less than a pipe holds", "more"])
def test_a_warden_that_was_stopped_acts_on_the_newest_times_only(words: int) -> None:
    """`kill -STOP` to the command's group stops its warden too, while the lease is renewed."""
    with parent("60", "61", *STUBBORN) as process:
        warden, child = int(line(process)), int(line(process))
        os.kill(warden, signal.SIGSTOP)
        wait_until(lambda: state(warden) == "T", "the warden's stop")
        order(process, f"outdated {words}")
        assert line(process) == "done"
        order(process, "tell 60 61")
        assert line(process) == "done"
        os.kill(warden, signal.SIGCONT)
        begun = time.monotonic()
        order(process, "tell 0.5 60")
        assert line(process) == "done"
        wait_until(lambda: not alive(child) or has_output(process), "TERM or KILL")
        assert alive(child), "it was killed at once"
        assert line(process) == "asked"
        assert time.monotonic() - begun > 0.45
        assert alive(child)
        os.killpg(warden, signal.SIGKILL)


def test_a_lease_that_was_lost_stays_lost() -> None:
    with parent("0.2", "1", *STUBBORN) as process:
        _, child = int(line(process)), int(line(process))
        assert line(process) == "asked"
        order(process, "tell 60 61")
        assert line(process) == "done"
        wait_until(lambda: not alive(child), "the command's end")


def test_processes_that_cannot_be_waited_for_have_ended() -> None:
    """If SIGCHLD is ignored, the kernel keeps no exit codes."""
    with parent("60", "61", *POLITE) as process:
        _, child = int(line(process)), int(line(process))
        order(process, "unwaited")
        assert line(process) == "done"
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "the command's end")
        order(process, "code")
        assert (line(process), line(process)) == ("255", "done")
        order(process, "dismiss")
        assert line(process) == "done"


def test_terminal_signals_do_not_move_it() -> None:
    with parent("60", "61", *POLITE) as process:
        warden, child = int(line(process)), int(line(process))
        for name in ("INT", "QUIT", "HUP", "TSTP", "TTIN", "TTOU", "USR1", "ALRM", "TERM"):
            subprocess.run(["kill", f"-{name}", str(warden)], check=True)
        order(process, "tell 60 61")
        assert line(process) == "done"
        assert alive(warden)
        subprocess.run(["kill", "-KILL", str(child)], check=True)


def test_it_holds_none_of_the_streams_open() -> None:
    """Its parent's end is the end of the pipe, though the warden still runs for the grace."""
    with parent("60", "61", "sh", "-c", "echo $$; exec >&- 2>&- <&-; trap '' TERM; sleep 60") as p:
        warden, child = int(line(p)), int(line(p))
        wait_until(lambda: not alive(child) or _quiet(child), "the command's closed streams")
        p.kill()
        assert p.stdout is not None
        assert p.stdout.read() == ""  # comes at once, and not after the grace
        assert alive(warden)
        os.killpg(warden, signal.SIGKILL)  # not kill(1): some take -123 for -1, which is everybody


def has_output(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def _quiet(pid: int) -> bool:
    return not os.path.lexists(f"/proc/{pid}/fd/1")
