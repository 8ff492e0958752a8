"""The processes in which the demo's workers live: started, killed and replaced from here."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple, Self

TOGETHER = 8
"""So many workers share a process."""

ALONE = ("printer", "candidate")
"""Workers of these kinds have a process each, so that one can be killed, "kill -9", by itself."""

MOST_ALONE = 5
"""But no more than so many, as each takes its memory."""

WORKER = "dibs.cli.demo.worker"

_ENDS = 5.0
"""So long a process that was killed may take to be gone, in seconds."""


class Dead(NamedTuple):
    """A process that is no more."""

    pid: int
    workers: list[str]


class Crew:
    """Entered, its processes run; left, there is none any more."""

    def __init__(self, url: str, workers: Iterable[str]) -> None:
        self._url = url
        """With the workers' key in it."""
        self._parts = shared(workers)
        self._running: dict[int, tuple[subprocess.Popen[bytes], list[str]]] = {}

    @property
    def processes(self) -> list[int]:
        """Which there are."""
        return list(self._running)

    def __enter__(self) -> Self:
        try:
            for part in self._parts:
                self.start(part)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, workers: list[str]) -> None:
        """One process, with these workers."""
        clean = {name: value for name, value in os.environ.items() if name[:10] != "DIBS_"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER],
            env=clean | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is ours to hear
        )
        self._running[process.pid] = process, workers
        assert process.stdin is not None
        orders = {"url": self._url, "workers": workers, "parent": os.getpid()}
        try:
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already, which is noticed like any other death

    def kill(self, pid: int) -> Dead | None:
        """Kill one, if it is one of these, and tell which workers die with it."""
        if pid not in self._running:
            return None
        os.kill(pid, signal.SIGKILL)
        return self._bury(pid)

    def ended(self) -> list[Dead]:
        """Those that have ended by themselves since this was asked last."""
        gone = [pid for pid, (process, _) in self._running.items() if process.poll() is not None]
        return [self._bury(pid) for pid in gone]

    def _bury(self, pid: int) -> Dead:
        process, workers = self._running.pop(pid)
        assert process.stdin is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # it never read its orders
        process.wait(_ENDS)
        return Dead(pid, workers)

    def __exit__(self, *_: object) -> None:
        for process, _workers in self._running.values():
            process.kill()
        for pid in self.processes:
            self._bury(pid)


def shared(workers: Iterable[str]) -> list[list[str]]:
    """Which workers have a process together."""
    alone: list[list[str]] = []
    others: list[str] = []
    for each in workers:
        if each.partition("-")[0] in ALONE and len(alone) < MOST_ALONE:
            alone.append([each])
        else:
            others.append(each)
    return alone + [others[at : at + TOGETHER] for at in range(0, len(others), TOGETHER)]
