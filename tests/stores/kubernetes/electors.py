"""Candidates of client-go, the official Python client and ours for one Lease, and who led when."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.stores.kubernetes.configs import Cluster

OURS = """
import asyncio, json, sys, time
import dibs

url, name, identity, ttl = sys.argv[1:]

def tell(event, at=0):
    print(json.dumps({"event": event, "monotonic_ns": at or time.monotonic_ns()}), flush=True)

async def lead(term):
    tell("started")
    try:
        while True:
            tell("trusted", time.monotonic_ns() + int(term.remaining * 1e9))
            await asyncio.sleep(0.02)
    finally:
        tell("stopped")

async def main():
    async with dibs.connect(url) as client:
        election = dibs.LeaderElection(name, ttl=float(ttl), label=identity, client=client)
        await election.run(lead, ready=lambda: tell("standing"))

asyncio.run(main())
"""

PYTHON = Path(__file__).with_name("python_elector.py")

ODD_CLOCK = {"TZ": "ODD-9:30"}
"""A time zone, for those who write local times into a Lease."""


class Term(NamedTuple):
    """From when to when somebody led or, if killed, would have gone on leading without a renewal."""

    start: float
    end: float
    kind: str
    killed: bool


class Candidate:
    """One process that stands for a Lease: of client-go (`go`), of the official Python client (`python`), or
    ours (`dibs`).
    """

    def __init__(self, kind: str, command: Sequence[str], told: Callable[[], None]) -> None:
        self.kind = kind
        self.terms: list[Term] = []
        self._told = told
        self._start = 0.0
        self._trusted = 0.0
        self.killed = False
        self.stands = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ODD_CLOCK,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def leads(self) -> bool:
        return bool(self._start)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            at = event["monotonic_ns"] / 1e9
            if event["event"] == "started":
                self._start = at
            elif event["event"] == "trusted":
                self._trusted = at
                continue
            elif event["event"] in ("standing", "leader"):
                self.stands = True
            elif event["event"] == "stopped":
                self._end(at)
            self._told()

    def _end(self, at: float) -> None:
        if self._start:
            self.terms.append(Term(self._start, at, self.kind, self.killed))
            self._start = self._trusted = 0.0

    def kill(self) -> None:
        """SIGKILL. Its term lasts for as long as it would have trusted it."""
        self.killed = True
        self._process.kill()
        at = time.monotonic()
        self._reader.join()
        self._end(max(at, self._trusted))
        self._close()

    def stop(self) -> None:
        """Let it give the Lease up. The Python client just ends: it never does."""
        if self.kind == "go":
            assert self._process.stdin is not None
            self._process.stdin.close()
        else:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        self._reader.join()
        self._close()

    def _close(self) -> None:
        self._process.wait(20)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class Contest:
    """Candidates for one Lease."""

    def __init__(self, cluster: Cluster, name: str, ttl: float, kinds: Sequence[str]) -> None:
        self._cluster = cluster
        self._name = name
        self._ttl = ttl
        self._number = 0
        self._changed = threading.Condition()
        self.ended: list[Candidate] = []
        self.candidates = [self._begin(kind) for kind in kinds]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self.candidates:
            each.kill()

    def _begin(self, kind: str) -> Candidate:
        self._number += 1
        identity, ttl, server = f"{kind}-{self._number}", self._ttl, self._cluster.server
        whole = max(ttl, 1.0)  # client-go drops what is less than a second
        url = self._cluster.url
        if kind == "dibs":
            command = [sys.executable, "-c", OURS, url, self._name, identity, str(ttl)]
        elif kind == "python":
            duration = str(math.ceil(ttl))
            command = [sys.executable, str(PYTHON), url.partition("=")[2]]
            command += [self._cluster.namespace, self._name, identity, duration]
        else:
            command = [str(server.program.path), "elect", "-url", server.url, "-lease", self._name]
            command += ["-namespace", self._cluster.namespace, "-identity", identity]
            command += ["-lease-duration", f"{whole}s", "-renew-deadline", f"{whole * 0.6:.3f}s"]
            command += ["-retry-period", f"{whole * 0.12:.3f}s", "-release-on-cancel"]
        return Candidate(kind, command, self._told)

    def _told(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def leader(self, within: float) -> Candidate:
        """Wait until somebody leads."""
        with self._changed:
            assert self._changed.wait_for(self._leaders, within), f"nobody led within {within} s"
            return self._leaders()[0]

    def _leaders(self) -> list[Candidate]:
        return [each for each in self.candidates if each.leads]

    def all_stand(self, within: float = 20) -> None:
        """Wait until each candidate knows the Lease."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(c.stands for c in self.candidates), within)

    def end(self, candidate: Candidate, *, kill: bool) -> None:
        """End a candidate."""
        self.candidates.remove(candidate)
        (candidate.kill if kill else candidate.stop)()
        self.ended.append(candidate)

    def begin(self, kind: str) -> None:
        """Begin another one."""
        self.candidates.append(self._begin(kind))

    @property
    def terms(self) -> list[Term]:
        """All terms that have ended, in their order."""
        return sorted(term for each in self.ended for term in each.terms)


def overlaps(terms: Sequence[Term]) -> list[tuple[Term, Term]]:
    """Pairs of terms that overlap: two leaders."""
    return [(one, two) for one, two in pairwise(terms) if two.start < one.end]
