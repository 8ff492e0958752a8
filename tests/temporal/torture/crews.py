"""Who serves and who contends from outside of Temporal: the workers, and the plain programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.servers.temporal import TemporalServer
from tests.temporal.torture.crew import Crew
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.plan import Plan

WORKER = "tests.temporal.torture.worker"
PLAIN = "tests.temporal.torture.plain"


@dataclass(frozen=True)
class Queues:
    """The task queues of one trial, and with what all its names begin."""

    prefix: str

    @property
    def holders(self) -> str:
        """Of holders and their work."""
        return f"{self.prefix}-holders"

    @property
    def permits(self) -> str:
        """Of permits, brokers and mailboxes."""
        return f"{self.prefix}-permits"


@dataclass(frozen=True)
class Crews:
    """All processes but the server."""

    workers: Crew
    plain: Crew

    @classmethod
    def start(
        cls, plan: Plan, server: TemporalServer, queues: Queues, folder: Path, diary: Diary
    ) -> Self:
        """Let them come."""
        serving = {
            "address": server.address,
            "folder": str(folder),
            "bug": plan.bug,
            "holders": queues.holders,
            "permits": queues.permits,
        }
        contending = {
            "url": _url(server, queues),
            "prefix": f"{queues.prefix}-",
            "seed": plan.seed,
            "tasks": plan.hands,
            "ttl": plan.lease,
            "wait": 3 * plan.bound,
            "folder": str(folder),
        }
        return cls(
            Crew(plan.workers, WORKER, folder / "workers.log", diary, serving),
            Crew(plan.programs, PLAIN, folder / "plain.log", diary, contending),
        )

    def look_after(self) -> None:
        """Continue whose pause is over, and replace the dead."""
        for crew in (self.workers, self.plain):
            crew.resume()
            crew.replace_dead()

    def wake(self) -> None:
        """Nobody is paused any more."""
        for crew in (self.workers, self.plain):
            crew.resume(everybody=True)

    def end(self) -> None:
        """No process is left."""
        for crew in (self.plain, self.workers):
            crew.end()


def _url(server: TemporalServer, queues: Queues) -> str:
    return f"{server.url}?task_queue={queues.permits}"
