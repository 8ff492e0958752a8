"""A whole torture: rounds of processes against one store, in names that nothing else uses."""

import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from dibs import sync
from dibs.clock import BootClock
from dibs.errors import DibsError
from dibs.testing.torture.crew import Crew
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.namespace import Namespace
from dibs.testing.torture.plan import TorturePlan
from dibs.testing.torture.rounds import Doing, Round, TortureProgress
from dibs.testing.torture.verdict import KILL, Verdict

PERIOD = 0.5
SLOW = 1.0
"""Seconds that neither an answer nor a nap may be late."""


class Pulse:
    """A thread with a client of its own."""

    def __init__(self, url: str, name: str) -> None:
        self._lapses: list[float] = []
        self._lock = threading.Lock()
        self._url, self._name = url, name
        self._now = BootClock().now
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(2 * SLOW)  # one that hangs is left behind: it is a daemon

    def take(self) -> list[float]:
        """When a lapse began or went on since the last time, by the clock of histories."""
        with self._lock:
            taken, self._lapses = self._lapses, []
        return taken

    def _note(self, *times: float) -> None:
        with self._lock:
            self._lapses += times

    def _beat(self) -> None:
        client = sync.connect(self._url, connect_timeout=2 * SLOW, call_timeout=2 * SLOW)
        with client:
            last = self._now()
            while not self._over.wait(PERIOD):
                began = self._now()
                if began - last > PERIOD + SLOW:
                    self._note(last, began)
                if not self._is_well(client) or self._now() - began > SLOW:
                    self._note(began, self._now())
                last = self._now()

    def _is_well(self, client: sync.Client) -> bool:
        try:
            client.status(self._name)
        except Exception:  # noqa: BLE001 - a third party's store may raise anything
            return False
        return True


SOON = 5.0
"""Seconds in which a store that hangs is given up before anything was tried."""
TOLD = 20
"""So many lines of what broken processes wrote are told."""


class Torture:
    """Processes that take turns on the store at `url` while they are killed and paused.

    `run` returns the verdict. `stop` ends it early, from any thread or a signal's handler. `progress`
    is called several times a second with how far it has come. Nothing is left behind: no process,
    and in the store only idle records, which it throws out in its own time.
    """

    def __init__(
        self,
        url: str,
        plan: TorturePlan | None = None,
        *,
        progress: Callable[[TortureProgress], object] = lambda progress: None,
    ) -> None:
        self.plan = plan or TorturePlan()
        self.under_way = False
        """Whether the store has been found fit, so that there will be a verdict."""
        self._client = sync.connect(url, connect_timeout=SOON, call_timeout=SOON)
        self._url = url
        self._progress = progress
        self._stops = 0
        self._reader = self._writer = -1
        self._verdict = Verdict()
        self._turns: tuple[Round, Crew] | None = None
        self._under_way: Verdict | None = None
        self._doing: Doing = "starting"
        self._began = 0.0

    def stop(self) -> None:
        """Let processes finish their turn and give the verdict; a second time: kill them at once."""
        self._stops += 1
        try:
            os.write(self._writer, b"\0")
        except OSError:
            pass  # it is over, or has been told often enough

    def run(self) -> Verdict:
        """Run it to its end, once. Call it from the thread that outlives it.

        Raises what stands in the way of trying at all: `BackendUnavailable`, `Forbidden`,
        `NotConfigured` for a store of one process, `UnsafeTiming` for a ttl that is too short for it.
        """
        self._began = time.monotonic()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        with ExitStack() as stack:
            stack.callback(self._close)
            client = stack.enter_context(self._client)
            namespace = Namespace(client)
            namespace.probe(self.plan.ttl)
            verdict = self._verdict = self._blank(client, namespace.prefix)
            self.under_way = True
            pulse = stack.enter_context(Pulse(self._url, f"{namespace.prefix}pulse"))
            self._run_rounds(namespace.prefix, pulse)
            verdict.seconds = time.monotonic() - self._began
            verdict.ended_early = bool(self._stops)
            self._tell("cleaning up")
            verdict.left = self._clean(namespace)
        return verdict

    def _clean(self, namespace: Namespace) -> str:
        """What could not be tidied up, in words."""
        try:
            places = namespace.clean(self._wait)
        except DibsError as error:
            return f"the store could not be tidied up, so leases there end by themselves: {error}"
        return f"{places} places of killed processes, until the store drops them" if places else ""

    def _blank(self, client: sync.Client, prefix: str) -> Verdict:
        plan = self.plan
        return Verdict(
            url=client.url,
            scope=client.capabilities.scope,
            prefix=prefix,
            seed=plan.seed,
            processes=plan.processes,
            ttl=plan.ttl,
            tasks=plan.tasks,
            threads=plan.threads,
            resources=plan.resources,
        )

    def _run_rounds(self, prefix: str, pulse: Pulse) -> None:
        judge = self._judge()
        until = self._began + self.plan.seconds
        number = 0
        while not number or (self._goes_on and time.monotonic() + self._least < until):
            self._run_round(number, prefix, pulse, judge)
            number += 1
            if self._verdict.violations or self._verdict.trouble:
                return

    @property
    def _goes_on(self) -> bool:
        return not self._stops and not self._enough()

    def _enough(self) -> bool:
        """All cycles that were asked for are done."""
        wanted = self.plan.cycles
        return wanted is not None and self._verdict.cycles + self._so_far().cycles >= wanted

    @property
    def _least(self) -> float:
        """Seconds for which a further round is worth its while."""
        return 0.5 * self.plan.seconds / self.plan.rounds

    def _run_round(self, number: int, prefix: str, pulse: Pulse, judge: Judge) -> None:
        folder = Path(tempfile.mkdtemp(prefix="dibs-verify-"))
        keep = False
        try:
            found = self._under_way = self._take_turns(number, prefix, folder)
            self._tell("checking")
            found.add(judge.judge(folder, pulse.take()))
            keep = bool(found.violations)
            found.history = str(folder) if keep else ""
            self._verdict.add(found)
        finally:
            self._under_way = None
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _take_turns(self, number: int, prefix: str, folder: Path) -> Verdict:
        """One round, until all of its processes have ended."""
        crew, turns = self._round(number, self._url, prefix, folder)
        self._turns = turns, crew
        try:
            turns.run(self._wait)
            crew.end(at_once=self._stops > 1)
            found = _done(turns, crew, early=bool(self._stops))
            found.wrote = self._last_words(folder) if found.trouble else ""
            return found
        finally:
            self._turns = None
            crew.close()

    def _judge(self) -> Judge:
        """Who judges all rounds."""
        return Judge(self.plan, self._client.capabilities.clock)

    def _round(self, number: int, url: str, prefix: str, folder: Path) -> tuple[Crew, Round]:
        """Who takes turns in a round, and what strikes them."""
        crew = Crew(url, prefix, self.plan, folder)
        return crew, Round(crew, self.plan, folder, number, self._enough)

    def _last_words(self, folder: Path) -> str:
        wrote = (folder / "stderr").read_text(errors="replace").replace(self._url, self._client.url)
        return "\n".join(wrote.splitlines()[-TOLD:])

    def _wait(self, seconds: float) -> bool:
        """Sleep, and tell how far it is on the way; False once it was told to stop."""
        self._tell(self._turns[0].doing if self._turns else self._doing)
        if not self._stops:
            select.select([self._reader], [], [], seconds)
        return not self._stops

    def _tell(self, doing: Doing) -> None:
        self._doing = doing
        before, now = self._verdict, self._so_far()
        faults = before.faults + now.faults
        seconds, cycles = time.monotonic() - self._began, before.cycles + now.cycles
        self._progress(
            TortureProgress(
                doing=doing,
                seconds=seconds,
                of=self._in_all(seconds, cycles),
                cycles=cycles,
                kills=faults[KILL],
                pauses=faults.total() - faults[KILL],
                struck=before.struck + now.struck,
            )
        )

    def _in_all(self, seconds: float, cycles: int) -> float:
        """How long it will take, from how far it has come."""
        wanted = self.plan.cycles
        if wanted is None or not cycles:
            return self.plan.seconds
        return min(self.plan.seconds, seconds * max(1.0, wanted / cycles))

    def _so_far(self) -> Verdict:
        """What the round under way has done."""
        if self._turns:
            turns, crew = self._turns
            return Verdict(cycles=crew.cycles, faults=turns.faults, hit=turns.hit)
        return self._under_way or Verdict()

    def _close(self) -> None:
        writer, self._writer = self._writer, -1  # or a late `stop` might write to another's file
        os.close(writer)
        os.close(self._reader)


def _done(turns: Round, crew: Crew, *, early: bool) -> Verdict:
    """What was done in a round, before what it shows."""
    return Verdict(
        cycles=crew.cycles,
        faults=turns.faults,
        hit=turns.hit,
        hit_by=turns.struck,
        calm=turns.calm,
        outages=crew.outages,
        trouble="; ".join(_trouble(turns, crew, early=early)),
    )


def _trouble(turns: Round, crew: Crew, *, early: bool) -> Iterator[str]:
    """What processes did that nobody had told them."""
    if crew.bad_ends and not (early and crew.outages):
        codes = ", ".join(map(str, sorted(set(crew.bad_ends))))
        yield f"{len(crew.bad_ends)} processes ended by themselves (exit codes: {codes})"
    if turns.idle and not early:
        yield f"{len(turns.idle)} processes did not get to work before faults began"
