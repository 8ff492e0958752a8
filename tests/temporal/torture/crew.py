"""The processes of one kind, as in the torture of `dibs.testing`; histories tell when each has died."""

from pathlib import Path

from dibs.testing import TorturePlan
from dibs.testing.torture.crew import Crew
from tests.temporal.torture.plan import Plan
from tests.temporal.torture.records import killed

WORKER = "tests.temporal.torture.worker"
PLAIN = "tests.temporal.torture.plain"


class ModuleCrew(Crew):
    """So many processes that run a module with these arguments."""

    def __init__(
        self, many: int, program: list[str], url: str, prefix: str, plan: Plan, folder: Path
    ) -> None:
        sized = TorturePlan(tasks=plan.hands, ttl=plan.lease, seed=plan.seed)
        super().__init__(url, prefix, sized, folder)
        self._numbers = range(many)
        self._program = program

    def program(self, number: int) -> list[str]:
        return self._program

    def process(self, number: int) -> int:
        """The process id."""
        return self._workers[number].pid

    def look_after(self) -> None:
        """Continue those whose pause is over, and replace the dead."""
        self.resume()
        self.replace_dead()

    def _replace(self, number: int) -> None:
        self.recorder.record(killed(self.recorder.now(), self.process(number)))
        super()._replace(number)
