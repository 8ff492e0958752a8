"""The torture of `dibs.testing`, with servers and ways that are struck as well, and raw clients."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dibs.core.timing import DRIFT, claim_timeout
from dibs.testing import Torture, TorturePlan
from dibs.testing.checker import Violation
from dibs.testing.history import HistoryEvent as Event
from dibs.testing.history import read
from dibs.testing.torture.crew import Crew
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.plan import primitive_of
from dibs.testing.torture.rounds import Round, Wait
from dibs.testing.torture.verdict import Verdict
from tests.server.torture.bugs import BUGS
from tests.server.torture.raw import STILL_HELD
from tests.server.torture.site import Site, StoreName, Storm, running
from tests.torture.in_line import IN_LINE

WORKER = "tests.server.torture.worker"
KINDS = ("lock", "semaphore", "rwlock")
FEW = 2
"""Faults of servers and ways that a run has at least, if its time allows."""

LOADED = 30.0
"""Seconds more in which all may begin: two servers are busy with it, and maybe others with this machine."""


class ServiceCrew(Crew):
    """The last of the processes use no library."""

    raw = 0
    bug = ""

    def program(self, number: int) -> list[str]:
        how = ["--raw"] if number >= self._plan.processes - self.raw else []
        return [WORKER, *how, *(["--bug", self.bug] if self.bug else [])]


class ServiceRound(Round):
    """Servers and ways are struck for as long as clients are, or alone."""

    storm: Storm
    spared = False
    """No client is killed or paused: so whoever waits is there, and only servers may keep it waiting."""

    def _warm_up(self, until: float, wait: Wait) -> None:
        super()._warm_up(until + LOADED, wait)

    def _strike(self, glances: int) -> bool:
        return not self.spared and super()._strike(glances)

    def _storm(self, until: float, wait: Wait) -> None:
        with self.storm.raging(self.crew.recorder):
            super()._storm(until, wait)


class ServiceJudge(Judge):
    """Remembers how many turns it has looked at."""

    turns = 0

    def judge(self, folder: Path, lapses: Sequence[float]) -> Verdict:
        verdict = super().judge(folder, lapses)
        events = read(*folder.glob("history-*.jsonl"))
        verdict.violations += _not_released(events)
        verdict.violations += self._out_of_turn(events)
        return verdict

    def _out_of_turn(self, events: Sequence[Event]) -> Iterator[Violation]:
        arrived = {
            (event.process, event.key, event.invoked): event.at
            for event in reversed(events)
            if event.resource == IN_LINE
        }
        grants: dict[str, list[Event]] = {}
        for event in events:
            if event.what == "granted" and _in_order(event.key):
                grants.setdefault(event.key, []).append(event)
        # until then its place stands at least, or the grant that it had in silence
        believed = (1 - DRIFT) * claim_timeout(self._plan.ttl)
        for key, of_key in grants.items():
            for first in of_key:
                at = arrived.get((first.process, key, first.invoked))
                if at is not None and first.at <= first.invoked + believed:
                    self.turns += 1
                    yield from _before(first, at, of_key)


def _in_order(key: str) -> bool:
    """Locks with an even number are passed on within a process, and readers come in together."""
    what = primitive_of(key)
    return what == "semaphore" or (what == "lock" and int(key.rpartition("-")[2]) % 2 == 1)


def _before(first: Event, arrived: float, grants: Sequence[Event]) -> Iterator[Violation]:
    """Who came after somebody whose place was there, and was served first."""
    for later in grants:
        if later.token < first.token and later.invoked > arrived:
            message = (
                f"out of turn: token {later.token} was asked for at {later.invoked:.6f}, and came "
                f"before {first.token}, which was in line at {arrived:.6f}"
            )
            yield Violation("token", first.key, message, (first, later))


def _not_released(events: Sequence[Event]) -> Iterator[Violation]:
    for event in events:
        if event.resource == STILL_HELD:
            message = f"token {event.token} was released, which was acknowledged, and is held still"
            yield Violation("starved", event.key, message, (event,))


class ServiceTorture(Torture):
    def __init__(
        self,
        site: Site,
        plan: TorturePlan,
        *,
        raw: int = 2,
        spare_clients: bool = False,
        bug: str = "",
    ) -> None:
        super().__init__(site.url, plan)
        self.storm = Storm(site, plan.ttl, plan.seed)
        self.judged_by = ServiceJudge(plan)
        self._raw, self._spared = raw, spare_clients
        self._bug = bug if bug and BUGS[bug].where == "client" else ""

    def _judge(self) -> Judge:
        return self.judged_by

    def _enough(self) -> bool:
        return super()._enough() and self.storm.counts.total() > FEW

    def _round(self, number: int, url: str, prefix: str, folder: Path) -> Round:
        crew = ServiceCrew(url, prefix, self.plan, folder)
        crew.raw, crew.bug = self._raw, self._bug
        turns = ServiceRound(crew, self.plan, folder, number, self._enough)
        turns.storm, turns.spared = self.storm, self._spared
        return turns


@contextmanager
def tortured(
    folder: Path, store: StoreName, plan: TorturePlan, *, bug: str = "", **how: Any
) -> Generator[ServiceTorture]:
    of_server = bug if bug and BUGS[bug].where == "server" else ""
    with running(folder, store, plan.seed, of_server) as site:
        yield ServiceTorture(site, plan, bug=bug, **how)
