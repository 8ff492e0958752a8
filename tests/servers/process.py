"""A server's process: started on a leash, signalled by its id, never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
START_WITHIN = 30.0
STOP_WITHIN = 30.0


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
        remove: Path | None = None,
    ) -> None:
        """Start it. `end_signal` and `remove` are for when this process ends without `stop`."""
        self.log = log
        self._stop_signal = stop_signal
        self._end_signal = end_signal
        options = ["--parent", str(os.getpid()), "--signal", str(int(end_signal))]
        if remove is not None:
            options += ["--remove", str(remove)]
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

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Poll until it is ready; a server that ended, or takes too long, raises with its log."""
        end = time.monotonic() + START_WITHIN
        while not ready():
            if not self.alive:
                self._fail(f"ended before it {what}")
            if time.monotonic() > end:
                self.kill()
                self._fail(f"has not {what} in {START_WITHIN:g} s")
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is just ending
            if self.alive:
                os.kill(self.pid, number)

    def stop(self) -> None:
        """Ask it to end, as an operator would, and wait; a paused one continues first."""
        self.signal(self._stop_signal)
        self.signal(signal.SIGCONT)
        try:
            self._leash.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            self._fail(f"did not stop in {STOP_WITHIN:g} s")

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._leash.wait(STOP_WITHIN)

    def end(self) -> None:
        """The quickest way that leaves nothing behind, for when nobody needs it any more."""
        self.signal(self._end_signal)
        self.signal(signal.SIGCONT)
        try:
            self._leash.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()

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


def until_gone(pids: Sequence[int], within: float = 30.0) -> None:
    """Wait until none of these runs any more; a process that nobody has buried yet doesn't."""
    end = time.monotonic() + within
    while any(_runs(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    listed = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(listed, check=False, capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")
