"""Elections on one Lease, with electors of client-go and the official Python client.

There are never two leaders, and each hands over to the other.
"""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import pytest

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
    ours (`dibs`). `changed` is notified of each of its events.
    """

    def __init__(self, kind: str, command: Sequence[str], changed: threading.Condition) -> None:
        self.kind = kind
        self.terms: list[Term] = []
        self.killed = self.ended = self.stands = False
        self.leads = 0.0
        """Since when."""
        self._trusted = 0.0
        self._changed = changed
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | ODD_CLOCK
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            at = told["monotonic_ns"] / 1e9
            match told["event"]:
                case "started":
                    self.leads = at
                case "trusted":
                    self._trusted = at
                case "standing" | "leader":
                    self.stands = True
                case "stopped":
                    self._end_term(at)
            with self._changed:
                self._changed.notify_all()

    def _end_term(self, at: float) -> None:
        if self.leads:
            self.terms.append(Term(self.leads, at, self.kind, self.killed))
            self.leads = self._trusted = 0.0

    def end(self, *, kill: bool) -> None:
        """Let it give the Lease up, which the Python client never does, or kill it.

        Then its term lasts for as long as it would have trusted it.
        """
        self.ended, self.killed = True, kill
        assert self._process.stdin is not None
        with self._process:
            if kill:
                self._process.kill()
            elif self.kind == "go":
                self._process.stdin.close()
            else:
                self._process.send_signal(signal.SIGTERM)
            at = time.monotonic()
            self._process.wait(20)
            self._reader.join()
        self._end_term(max(at, self._trusted))


class Contest:
    """Candidates for one Lease."""

    def __init__(self, cluster: Cluster, name: str, ttl: float, kinds: Sequence[str]) -> None:
        self._cluster = cluster
        self._name = name
        self._ttl = ttl
        self._changed = threading.Condition()
        self._candidates: list[Candidate] = []
        for kind in kinds:
            self.begin(kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        for each in self._standing():
            each.end(kill=True)
            self._candidates.remove(each)

    def begin(self, kind: str) -> None:
        """Begin another candidate."""
        command = self._command(kind, f"{kind}-{len(self._candidates)}")
        self._candidates.append(Candidate(kind, command, self._changed))

    def _command(self, kind: str, identity: str) -> list[str]:
        cluster, name, ttl = self._cluster, self._name, self._ttl
        if kind == "dibs":
            return [sys.executable, "-c", OURS, cluster.url, name, identity, str(ttl)]
        if kind == "python":
            words = [cluster.namespace, name, identity, str(math.ceil(ttl))]
            return [sys.executable, str(PYTHON), cluster.url.partition("=")[2], *words]
        whole = max(ttl, 1.0)  # client-go drops what is less than a second
        options = {
            "url": cluster.server.url,
            "namespace": cluster.namespace,
            "lease": name,
            "identity": identity,
            "lease-duration": f"{whole}s",
            "renew-deadline": f"{whole * 0.6:.3f}s",
            "retry-period": f"{whole * 0.12:.3f}s",
        }
        words = [f"-{option}={value}" for option, value in options.items()]
        return [str(cluster.server.program.path), "elect", *words, "-release-on-cancel"]

    def _standing(self) -> list[Candidate]:
        return [each for each in self._candidates if not each.ended]

    def leader(self, within: float) -> Candidate:
        """Wait until somebody leads."""
        with self._changed:
            assert self._changed.wait_for(self._leaders, within), f"nobody led within {within} s"
            return self._leaders()[0]

    def _leaders(self) -> list[Candidate]:
        return [each for each in self._standing() if each.leads]

    def all_stand(self, within: float = 20) -> None:
        """Wait until each candidate knows the Lease."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(c.stands for c in self._standing()), within)

    def terms(self) -> list[Term]:
        """All terms that the test has ended, in their order. No two overlap: there are never two leaders."""
        found = sorted(term for each in self._candidates for term in each.terms)
        assert not [(one, two) for one, two in pairwise(found) if two.start < one.end]
        return found


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("other", "ttl", "kills"), [("go", 1.0, [False, True]), ("python", 4.0, [])]
)
def test_a_leader_of_each_hands_over_to_the_other(
    cluster: Cluster, other: str, ttl: float, kills: list[bool]
) -> None:
    """The Python client waits for its own `lease_duration`, here the ttl, and never gives a Lease up."""
    last = ""
    with Contest(cluster, "web.example.com", ttl, [other, "dibs"]) as contest:
        for kill in [*kills, False]:
            leader = contest.leader(within=2 * ttl + 5)
            assert leader.kind != last, "the other one was waiting"
            if last:
                contest.begin(last)
            last = leader.kind
            contest.all_stand()
            time.sleep(0.2 + ttl / 3)  # a renewal or two
            leader.end(kill=kill)
        contest.leader(within=2 * ttl + 5)
    terms = contest.terms()
    assert len(terms) == len(kills) + 1
    for one, two in pairwise(terms):
        if not one.killed and one.kind != "python":
            assert two.start - one.end < 2.5, terms


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kinds", "ttl", "count"),
    [
        (["go", "go", "dibs", "dibs"], 3.0, 105),
        (["go", "go", "dibs", "dibs"], 2.5, 105),
        (["go", "go", "dibs", "dibs"], 0.9, 105),
        (["python", "python", "dibs"], 4.0, 65),
        (["python", "python", "dibs", "dibs"], 3.5, 65),
        (["python", "go", "dibs"], 4.0, 65),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_many_terms_of_all(cluster: Cluster, kinds: list[str], ttl: float, count: int) -> None:
    draw = random.Random(ttl)
    with Contest(cluster, "web", ttl, kinds) as contest:
        for _ in range(count):
            leader = contest.leader(within=2 * ttl + 10)
            time.sleep(draw.uniform(0.05, 0.5))
            if leader.leads:
                leader.end(kill=draw.random() < 0.3)
                contest.begin(leader.kind)
    terms = contest.terms()
    assert len(terms) >= 60
    assert sum(term.killed for term in terms) >= 15
