"""The torture of `dibs.testing`, with servers and ways that are struck as well, and raw clients."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dibs.testing import Torture, TorturePlan
from dibs.testing.torture.crew import Crew
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.rounds import Round, Wait
from tests.server.torture.bugs import BUGS
from tests.server.torture.judging import ServiceJudge
from tests.server.torture.site import Site, StoreName, Storm, running

WORKER = "tests.server.torture.worker"
KINDS = ("lock", "semaphore", "rwlock")
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


class ServiceTorture(Torture):
    """Over a site."""

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
