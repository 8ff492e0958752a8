"""The torture of `dibs.testing`, with servers and ways that are struck as well, and raw clients."""

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, nullcontext
from math import inf
from pathlib import Path
from typing import Any

from dibs.testing import Torture, TorturePlan, TortureProgress
from dibs.testing.torture.crew import Crew
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.rounds import Round, Wait
from tests.server.torture.bugs import BUGS
from tests.server.torture.judging import ServiceJudge
from tests.server.torture.site import Site, StoreName, running
from tests.server.torture.storm import Moves, Storm

WORKER = "tests.server.torture.worker"
KINDS = ("lock", "semaphore", "rwlock")
ALWAYS_ONE = {"server killed", "server restarted"}
"""Faults that leave a server to those who wait: then nobody may wait for longer than a ttl."""
LOADED = 30.0
"""Seconds more in which all may begin: two servers are busy with it, and maybe others with this machine."""
SOON = 2.0
"""Seconds on top of that, for a busy machine."""


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
    moves: Moves | None = None
    spared = False
    """No client is killed or paused: so whoever waits is there, and only servers may keep it waiting."""

    def _warm_up(self, until: float, wait: Wait) -> None:
        super()._warm_up(until + LOADED, wait)

    def _strike(self, glances: int) -> bool:
        return not self.spared and super()._strike(glances)

    def _storm(self, until: float, wait: Wait) -> None:
        recorder, moves = self.crew.recorder, self.moves
        with self.storm.raging(recorder), moves.going_on(recorder) if moves else nullcontext():
            super()._storm(until, wait)


class ServiceTorture(Torture):
    """Over a site."""

    def __init__(
        self,
        site: Site,
        plan: TorturePlan,
        *,
        raw: int = 2,
        spared: bool = False,
        kinds: Collection[str] = (),
        bug: str = "",
        moves: bool = False,
        progress: Callable[[TortureProgress], object] = lambda progress: None,
    ) -> None:
        super().__init__(site.url, plan, progress=progress)
        self.storm = Storm(site, plan.ttl, plan.seed, kinds)
        self._raw, self._spared = raw, spared
        self._bug = bug if bug and BUGS[bug].where == "client" else ""
        at_hand = spared and kinds and not set(kinds) - ALWAYS_ONE
        self.judged_by = ServiceJudge(plan, plan.ttl + SOON if at_hand else inf)
        self.moves = Moves(site) if moves else None
        self.judged_by.in_order = not moves

    def _judge(self) -> Judge:
        return self.judged_by

    def _round(self, number: int, url: str, prefix: str, folder: Path) -> Round:
        crew = ServiceCrew(url, prefix, self.plan, folder)
        crew.raw, crew.bug = self._raw, self._bug
        turns = ServiceRound(crew, self.plan, folder, number, self._enough)
        turns.storm, turns.moves, turns.spared = self.storm, self.moves, self._spared
        return turns


@contextmanager
def tortured(
    folder: Path,
    store: StoreName,
    plan: TorturePlan,
    *,
    tls: bool = False,
    bug: str = "",
    **how: Any,
) -> Generator[ServiceTorture]:
    of_server = bug if bug and BUGS[bug].where == "server" else ""
    with running(folder, store, plan.seed, tls=tls, bug=of_server) as site:
        yield ServiceTorture(site, plan, bug=bug, moves=store == "two redis", **how)
