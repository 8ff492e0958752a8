"""A whole torture: rounds of processes against one store, under names that nothing else uses."""

import os
import secrets
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from dibs import sync
from dibs.clock import BootClock
from dibs.core.timing import margin
from dibs.errors import DibsError, NotConfigured, UnsafeTiming
from dibs.testing.torture.crew import Crew
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.plan import LINGER, TorturePlan
from dibs.testing.torture.rounds import Doing, Round, TortureProgress
from dibs.testing.torture.verdict import KILL, Verdict

PERIOD = 0.5
"""Seconds between two looks at whether the store answers."""
SLOW = 1.0
"""Seconds by which an answer, or this thread, may be late."""


class StorePulse:
    """A thread with a client of its own, which notes when the store was away or this machine stood still."""

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
        """Begin and end of each lapse since the last call, by the clock of histories."""
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
                if not self._answers(client) or self._now() - began > SLOW:
                    self._note(began, self._now())
                last = self._now()

    def _answers(self, client: sync.Client) -> bool:
        try:
            client.status(self._name)
        except Exception:  # noqa: BLE001 - a third party's store may raise anything
            return False
        return True


SOON = 5.0
"""Seconds after which a store that hangs is given up, before anything was tried."""
LAST_LINES = 20
"""Lines of what broken processes wrote that the verdict shows."""
PROBES = 10
GLANCE = 0.5
"""Seconds between two looks at what is left in the store."""


class Torture:
    """Processes that take turns on the store at `url` while they are killed and paused.

    `run` returns the verdict. `stop` ends it early, from any thread or a signal's handler. `progress`
    is called several times a second with how far it has come. No process is left behind, and in the store
    only idle records, which it drops later.
    """

    def __init__(
        self,
        url: str,
        plan: TorturePlan | None = None,
        *,
        progress: Callable[[TortureProgress], object] = lambda progress: None,
    ) -> None:
        self.plan: TorturePlan = plan or TorturePlan()
        self.under_way: bool = False
        """Whether the store has been found fit, so that there will be a verdict."""
        self._client = sync.connect(url, connect_timeout=SOON, call_timeout=SOON)
        self._url = url
        self._prefix = f"dibs-verify-{secrets.token_hex(8)}/"
        self._progress = progress
        self._stops = 0
        self._reader = self._writer = -1
        self._verdict = Verdict()
        self._turns: Round | None = None
        self._found = Verdict()
        """Counters of the round under way, once its processes have ended."""
        self._doing: Doing = "starting"
        self._began = 0.0

    def stop(self) -> None:
        """Let processes finish their turn and give the verdict; a second time: kill them at once."""
        self._stops += 1
        try:
            os.write(self._writer, b"\0")
        except OSError:
            pass  # it is over, or was stopped very often

    def run(self) -> Verdict:
        """Run it to its end, once. Call it from the thread that outlives it.

        Raises what prevents a trial: `BackendUnavailable`, `Forbidden`,
        `NotConfigured` for a store of one process, `UnsafeTiming` for a ttl that is too short for it.
        """
        self._began = time.monotonic()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        with ExitStack() as stack:
            stack.callback(self._close)
            client = stack.enter_context(self._client)
            self._probe(client)
            verdict = self._verdict = self._blank(client)
            self.under_way = True
            pulse = stack.enter_context(StorePulse(self._url, f"{self._prefix}pulse"))
            self._run_rounds(pulse)
            verdict.seconds = time.monotonic() - self._began
            verdict.ended_early = bool(self._stops)
            self._report("cleaning up")
            verdict.left = self._clean(client)
        return verdict

    # -- the store ---------------------------------------------------------------------------------

    def _probe(self, client: sync.Client) -> None:
        """Check that several processes can use the store, in time."""
        if client.capabilities.scope == "process":
            raise NotConfigured(
                f"{client.url} lives in the memory of one process, so no other process can "
                "contend for its leases and there is nothing to verify: name a store that "
                "processes share, such as sqlite:///path.db"
            )
        ttl = self.plan.ttl
        lock = client.lock(f"{self._prefix}probe", ttl=max(ttl, 5.0), wait=0, env_load=False)
        took = median(_timed(lambda: lock.acquire().release()) for _ in range(PROBES)) / 2
        if took > margin(ttl):
            raise UnsafeTiming(
                f"a round trip to {client.url} takes {took:.3f} s, which is more than the "
                f"margin of a ttl of {ttl:g} s: try again with a ttl of {30 * took:.0f} s"
            )

    def _clean(self, client: sync.Client) -> str:
        """Free what the dead still hold; returns what could not be cleaned up, in words."""
        try:
            places = self._revoke_all(client)
        except DibsError as error:
            return f"the store could not be tidied up, so leases there end by themselves: {error}"
        return f"{places} places of killed processes, until the store drops them" if places else ""

    def _revoke_all(self, client: sync.Client) -> int:
        """Revoke until nothing is held; returns how many dead waiters are left after `LINGER`.

        Only the store can drop those, after half a minute.
        """
        until = time.monotonic() + LINGER
        while found := list(client.list(self._prefix)):
            for status in found:
                if status.holders:
                    client.revoke(status, reason="dibs verify is over", now=True)
            if time.monotonic() >= until or not self._wait(GLANCE):
                return sum(max(status.waiting, len(status.waiters)) for status in found)
        return 0

    def _blank(self, client: sync.Client) -> Verdict:
        plan = self.plan
        return Verdict(
            url=client.url,
            scope=client.capabilities.scope,
            prefix=self._prefix,
            seed=plan.seed,
            processes=plan.processes,
            ttl=plan.ttl,
            tasks=plan.tasks,
            threads=plan.threads,
            resources=plan.resources,
        )

    # -- rounds ------------------------------------------------------------------------------------

    def _run_rounds(self, pulse: StorePulse) -> None:
        judge = self._judge()
        until = self._began + self.plan.seconds
        number = 0
        while not number or (self._goes_on and time.monotonic() + self._least < until):
            self._run_round(number, pulse, judge)
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
        """Seconds that make a further round worth it."""
        return 0.5 * self.plan.seconds / self.plan.rounds

    def _run_round(self, number: int, pulse: StorePulse, judge: Judge) -> None:
        folder = Path(tempfile.mkdtemp(prefix="dibs-verify-"))
        keep = False
        try:
            found = self._found = self._take_turns(number, folder)
            self._report("checking")
            found.add(judge.judge(folder, pulse.take()))
            keep = bool(found.violations)
            found.history = str(folder) if keep else ""
            self._verdict.add(found)
        finally:
            self._found = Verdict()
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _take_turns(self, number: int, folder: Path) -> Verdict:
        """Run a round until all of its processes have ended."""
        turns = self._turns = self._round(number, self._url, self._prefix, folder)
        try:
            turns.run(self._wait)
            turns.crew.end(at_once=self._stops > 1)
            found = turns.found
            found.trouble = turns.trouble(early=bool(self._stops))
            found.wrote = self._last_words(folder) if found.trouble else ""
            return found
        finally:
            self._turns = None
            turns.crew.close()

    def _judge(self) -> Judge:
        """The judge of all rounds."""
        return Judge(self.plan, self._client.capabilities.clock)

    def _round(self, number: int, url: str, prefix: str, folder: Path) -> Round:
        """A round, with its crew."""
        return Round(Crew(url, prefix, self.plan, folder), self.plan, folder, number, self._enough)

    def _last_words(self, folder: Path) -> str:
        wrote = (folder / "stderr").read_text(errors="replace").replace(self._url, self._client.url)
        return "\n".join(wrote.splitlines()[-LAST_LINES:])

    # -- progress ----------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> bool:
        """Sleep, and report progress. Returns False after `stop`."""
        self._report(self._turns.doing if self._turns else self._doing)
        if not self._stops:
            select.select([self._reader], [], [], seconds)
        return not self._stops

    def _report(self, doing: Doing) -> None:
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
        """Counters of the round under way."""
        return self._turns.found if self._turns else self._found

    def _close(self) -> None:
        writer, self._writer = self._writer, -1  # or a late `stop` might write to another's file
        os.close(writer)
        os.close(self._reader)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
