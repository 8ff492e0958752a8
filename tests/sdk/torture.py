"""`python -m tests.sdk.torture --cycles 20000`: Rust and Python compete for the same names, with faults.

Two `dibs serve` over one store, a failing way to each and a balancer before both, as in
`tests.server.torture`. Half of the client processes are the Rust SDK's, and all are killed and paused.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dibs.testing import TorturePlan
from dibs.testing.history import read
from dibs.testing.torture.rounds import Wait
from dibs.testing.torture.verdict import Verdict
from tests.sdk.cargo import built
from tests.server.torture.site import StoreName, running
from tests.server.torture.trial import (
    KINDS,
    ServiceCrew,
    ServiceJudge,
    ServiceRound,
    ServiceTorture,
)

STARTING = 60.0
"""Seconds more in which all may begin: Rust programs are at work long before Python has imported all."""


class MixedCrew(ServiceCrew):
    """Every second process is a Rust program."""

    def program(self, number: int) -> list[str]:
        if number % 2:
            return super().program(number)
        return ["tests.sdk.replace", str(built("torture_worker"))]


class MixedRound(ServiceRound):
    """Faults strike for their whole time, however long all took to begin."""

    def _warm_up(self, until: float, wait: Wait) -> None:
        super()._warm_up(until + STARTING, wait)

    def _storm(self, until: float, wait: Wait) -> None:
        super()._storm(time.monotonic() + self._plan.storm, wait)


class MixedJudge(ServiceJudge):
    """Counts the grants of each language."""

    rust = python = 0

    def judge(self, folder: Path, lapses: list[float]) -> Verdict:  # type: ignore[override]
        for number in range(self._plan.processes):
            events = read(*folder.glob(f"history-{number}-*.jsonl"))
            grants = sum(event.what == "granted" for event in events)
            if number % 2:
                self.python += grants
            else:
                self.rust += grants
        return super().judge(folder, lapses)


class MixedTorture(ServiceTorture):
    judged_by: MixedJudge

    def _judge(self) -> MixedJudge:
        self.judged_by = MixedJudge(self.plan)
        return self.judged_by

    def _round(self, number: int, url: str, prefix: str, folder: Path) -> ServiceRound:
        crew = MixedCrew(url, prefix, self.plan, folder)
        turns = MixedRound(crew, self.plan, folder, number, self._enough)
        turns.storm, turns.spared = self.storm, False
        return turns


@contextmanager
def mixed(folder: Path, store: StoreName, plan: TorturePlan) -> Generator[MixedTorture]:
    built("torture_worker")  # first, as it can take minutes
    with running(folder, store, plan.seed) as site:
        yield MixedTorture(site, plan, raw=0)


def main() -> int:
    """The exit code: 0 if everything was tried and no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sdk.torture", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "redis", "postgres"), default="redis")
    parser.add_argument("--cycles", type=int, default=20_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--ttl", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all is ended on every way out
    sizes = ("seconds", "cycles", "processes", "ttl", "seed")
    plan = TorturePlan(**{name: getattr(chosen, name) for name in sizes}, primitives=KINDS)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        with mixed(Path(folder), chosen.store, plan) as torture:
            verdict = torture.run()
        judge, counts = torture.judged_by, torture.storm.counts
    print(verdict)
    faults = ", ".join(f"{name} {number:,}" for name, number in counts.most_common())
    print(f"Servers and the ways to them: {counts.total():,} faults: {faults}")
    print(f"Grants: {judge.rust:,} to Rust, {judge.python:,} to Python")
    return 0 if verdict.outcome == "clean" and judge.rust and judge.python else 1


if __name__ == "__main__":
    raise SystemExit(main())
