"""A server's process: started on a leash, signalled by its id, never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.servers.waiting import wait_until

LEASH = Path(__file__).with_name("leash.py")
WITHIN = 30.0
"""Seconds in which a server must start, or stop."""


class ServerFailed(Exception):
    """It did not start or stop; the text ends with its log."""


class ServerProcess:
    """One running server, from its start until it has ended."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        stop_signal: int = signal.SIGTERM,
        end_signal: int = signal.SIGKILL,
    ) -> None:
        """Start it. `end_signal` is for when this process ends without `stop`."""
        self.log = log
        self._stop_signal = stop_signal
        self._end_signal = end_signal
        self._begun = log.stat().st_size if log.exists() else 0
        options = ["--parent", str(os.getpid()), "--signal", str(int(end_signal))]
        with log.open("ab") as out:
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", LEASH, *options, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,  # a Ctrl-C is for the tests, not for their servers
            )
        assert self._leash.stdout is not None
        with self._leash.stdout as line:
            self.pid = int(line.readline() or self._fail("did not start"))

    @property
    def alive(self) -> bool:
        return self._leash.poll() is None

    def logged(self) -> bytes:
        """What it has written since its start."""
        return self.log.read_bytes()[self._begun :]

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Poll until it is ready; a server that ended, or takes too long, raises with its log."""
        try:
            wait_until(lambda: not self.alive or ready(), what, within=WITHIN)
        except TimeoutError:
            self.kill()
            self._fail(f"has not {what} in {WITHIN:g} s")
        if not self.alive:
            self._fail(f"ended before it {what}")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is just ending
            if self.alive:
                os.kill(self.pid, number)

    def stop(self) -> None:
        """Ask it to end, as an operator would, and wait; a paused one continues first."""
        if not self._ends_by(self._stop_signal):
            self._fail(f"did not stop in {WITHIN:g} s")

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._leash.wait(WITHIN)

    def end(self) -> None:
        """The quickest way that leaves nothing behind, for when nobody needs it any more."""
        self._ends_by(self._end_signal)

    def _ends_by(self, number: int) -> bool:
        self.signal(number)
        self.signal(signal.SIGCONT)
        try:
            self._leash.wait(WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def _fail(self, what: str) -> int:
        text = self.log.read_text("utf-8", "replace")[-2000:]
        raise ServerFailed(f"{self.log.stem} {what}; its log ends:\n{text}")


def children(pid: int) -> list[int]:
    """The processes that this one started and that still run."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    pairs = (tuple(map(int, line.split())) for line in listed.stdout.splitlines())
    return [child for child, parent in pairs if parent == pid]


def until_gone(pids: Sequence[int]) -> None:
    """Wait until none of these runs any more; a process that nobody has buried yet doesn't."""

    def gone() -> bool:
        command = ["ps", "-o", "stat=", "-p", ",".join(map(str, pids))]
        listed = subprocess.run(command, check=False, capture_output=True, text=True)
        return all(state.startswith("Z") for state in listed.stdout.split())

    if pids:
        wait_until(gone, f"{pids} are gone")
