"""A campaign: a candidate in the background, which leads when it is elected, and stands again after that."""

import logging
from random import uniform
from typing import Any

from dibs.errors import DibsError, LeaseLost, NotHeld
from dibs.locks.acquire import Stopped, StopSignal
from dibs.locks.election import Complaints, ElectionBase
from dibs.locks.messages import key_shown
from dibs.locks.term import JITTER, TermBase
from dibs.process import generation
from dibs.runtime.port import Guard, Job, Runtime, Signal

log = logging.getLogger("dibs")

GRACE = 1.0
"""How long a stop waits for a store that does not answer, in seconds."""


class CampaignBase[TermT: TermBase]:
    """What campaigns of both worlds share; made by elections only."""

    def __init__(self, election: ElectionBase[TermT]) -> None:
        self.election = election
        self._rt: Runtime | None = None
        self._stop = StopSignal()
        self._job: Job
        self._term: TermT | None = None
        self._hopeful: list[Signal] = []
        """Of those who wait for it to lead."""
        self._guarded: dict[object, TermT] = {}
        """The blocks that rely on a term."""
        self._unguarded: Signal | None = None
        self._complaints: Complaints
        self._generation = generation.number

    @property
    def term(self) -> TermT | None:
        """The term by which it leads at this moment; None while it doesn't."""
        term = self._term
        return term if term is not None and term._stands else None

    def is_leader(self) -> bool:
        """It leads: a plain call, and true only until the term's deadline."""
        return self.term is not None

    def resign(self) -> bool:
        """Step down, if it leads, and stand again after the others; tell whether it led.

        A plain call, from any thread. Blocks of `guard()` are interrupted; it hands over when they have
        ended.
        """
        term = self.term
        return term is not None and term._resign()

    @property
    def error(self) -> Exception | None:
        """Why it could not stand at its last try; None while all is well."""
        return self._complaints.latest if self._rt is not None else None

    # -- who waits ----------------------------------------------------------------------------------

    async def _wait(self, timeout: float | None) -> bool:
        """Wait until it leads; False at the timeout."""
        rt = self._running()
        until = None if timeout is None else rt.now() + timeout
        while True:
            signal = rt.signal()
            self._hopeful.append(signal)  # first, so that what comes from now on is not missed
            try:
                if self.is_leader():
                    return True
                left = None if until is None else until - rt.now()
                if self._stop.is_set or (left is not None and left <= 0):
                    return False
                await signal.wait(left)
            finally:
                self._hopeful.remove(signal)

    async def _wait_lost(self, timeout: float | None) -> bool:
        """Wait until it does not lead; False at the timeout."""
        rt = self._running()
        term = self.term
        if term is None:
            return True
        signal = rt.signal()
        term._watch(signal)
        try:
            await signal.wait(timeout)
        finally:
            term._unwatch(signal)
        return not term._stands

    def _running(self) -> Runtime:
        if self._rt is None:
            raise NotHeld("the campaign has not begun: enter it with `with`, or `async with`")
        if self._generation != generation.number:
            raise NotHeld("the campaign goes on in the process that this one was forked from")
        return self._rt

    # -- blocks that rely on it ---------------------------------------------------------------------

    def _rely(self, block: Signal) -> TermT:
        """A block begins that is to be told of the end of the term."""
        self._running()
        term = self.term
        if term is None:
            key = self.election.key
            raise NotHeld(f"this process does not lead {key_shown(key)}", key=key)
        self._guarded[block] = term
        term._watch(block)
        return term

    def _rely_no_more(self, block: Signal) -> None:
        term = self._guarded.pop(block, None)
        if term is not None:
            term._unwatch(block)
        waiting = self._unguarded
        if waiting is not None and not self._guarded:
            waiting.set()

    async def _until_unguarded(self, term: TermT, rt: Runtime) -> bool:
        """Wait for the blocks that rely on a term, while it could be theirs; tell whether all ended."""
        while self._guarded:
            signal = self._unguarded = rt.signal()
            left = term._deadline - rt.now()
            if left <= 0:
                return False
            if self._guarded:  # again, as the last may have ended just now
                await signal.wait(left)
        return True

    # -- in the background --------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._rt is not None:
            raise RuntimeError("this campaign was begun before: make another with campaign()")
        rt = self.election._runtime()
        self._complaints = Complaints(key_shown(self.election.key), rt.now)
        self._rt = rt
        self._job = rt.spawn(self._stand(), f"dibs-{key_shown(self.election.key)}")

    async def _finish(self) -> None:
        """Step down, and wait until others may lead, or until it is clear that the store is away."""
        if self._rt is None or self._generation != generation.number:
            return
        self._give_up()
        term = self._term
        left = 0.0 if term is None else max(term._deadline - self._rt.now(), 0.0)
        if not await self._job.join(left + GRACE):
            self._job.cancel()
            await self._job.join(GRACE)

    async def _stand(self) -> None:
        """Be a candidate until stopped."""
        while not self._stop.is_set:
            try:
                term = await self.election._win(self._stop)
                self._complaints.clear()
                await self._lead(term)
                if term._end == "closed":
                    self._give_up()
                elif term._end == "resigned":
                    await self._pause()
            except Stopped:
                return
            except Exception as error:
                if not isinstance(error, DibsError):
                    log.debug("the campaign stumbled", exc_info=True)
                self._complaints.tell(error)
                try:
                    await self._pause()
                except Stopped:
                    return

    def _give_up(self) -> None:
        """Stand no more, and let nobody wait for that."""
        self._stop.set()
        for signal in list(self._hopeful):
            signal.set()

    async def _lead(self, term: TermT) -> None:
        if self._stop.is_set:  # while it was elected: it never began
            term._resign()
            return await term._hand_over()
        self._term = term
        for signal in list(self._hopeful):
            signal.set()
        try:
            await term._tell_started()
            ended = self._running().signal()
            term._watch(ended)
            await self._stop.wait(ended, None)
        finally:
            await self._step_down(term)

    async def _step_down(self, term: TermT) -> None:
        """Nothing is done by the term any more when somebody else may lead."""
        term._resign()  # unless it was lost
        rt: Any = self._rt
        try:
            all_ended = await self._until_unguarded(term, rt)
            await term._stop()
            if all_ended:
                await term._hand_over()
        except BaseException:  # cancelled: nobody can wait any more
            if not self._guarded:
                term._hand_back()
            raise
        finally:
            self._term = None

    async def _pause(self) -> None:
        """Let others come first, and a store come back."""
        pause = self.election.retry * uniform(1, JITTER)  # noqa: S311
        await self._stop.wait(self._running().signal(), pause)


class GuardedBase[TermT: TermBase]:
    """What the guarded blocks of both worlds share; made by campaigns only."""

    def __init__(self, campaign: CampaignBase[TermT]) -> None:
        self._campaign = campaign
        self._term: TermT
        self._guard: Guard
        self.value: Any = None

    def set(self, value: object = None) -> None:
        """The term has ended."""
        self._guard.fire()

    async def wait(self, timeout: float | None) -> bool:
        """Nobody waits for a block."""
        return False

    def _begin(self) -> TermT:
        self._guard = self._campaign._running().guard()
        self._guard.enter()
        self._term = term = self._campaign._rely(self)
        return term

    def _end(self, exc: BaseException | None) -> None:
        term, ours = self._term, self._guard.leave(exc)
        self._campaign._rely_no_more(self)
        if term._stands:
            return
        if ours:
            raise term._loss() from exc
        if exc is not None and not isinstance(exc, LeaseLost):
            exc.add_note(str(term._loss()))
