"""Leader election: one key that one candidate at a time keeps, while the others wait for it.

A candidate stands in a `with` block, by `run()`, or in the background by a campaign.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from inspect import iscoroutinefunction
from itertools import count
from random import uniform
from typing import Any, ClassVar, Never, Self, Unpack
from weakref import ref

from dibs.config import UNSET, Duration, LockConfig, Unset
from dibs.core.names import Kind
from dibs.errors import BackendUnavailable, DibsError, LeaseLost, NotHeld
from dibs.locks.acquire import AcquireAttempt, AttemptStopped, StopSignal
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import raise_loss
from dibs.locks.messages import format_key
from dibs.locks.requests import NoOptions, known_configs, refuse_options, shown_as
from dibs.locks.term import (
    JITTER,
    READERS,
    Callback,
    LeaderConfig,
    TermBase,
    leader_configured,
    leader_rules,
)
from dibs.model import Holder
from dibs.process import generation
from dibs.runtime.port import Guard, Job, Runtime, Signal

log = logging.getLogger("dibs")

LOG_EVERY = 30.0
"""Seconds between two warnings about a candidate that goes on failing."""

GRACE = 1.0
"""Seconds that the end of a campaign waits for a store that does not answer."""


class LogThrottle:
    """The failures of one candidate: the first is logged, then one every `LOG_EVERY` seconds."""

    def __init__(self, of: str, now: Callable[[], float]) -> None:
        self._of = of
        self._now = now
        self._logged_at: float | None = None
        self.latest: Exception | None = None
        """The latest failure; None once it works again."""

    def report(self, error: Exception) -> None:
        """Log a failure, unless the last one was logged recently."""
        self.latest = error
        now = self._now()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY:
            self._logged_at = now  # only if it is logged: else nothing but the first ever would be
            log.warning("the campaign for %s failed and will retry: %s", self._of, error)

    def clear(self) -> None:
        """Log the next failure again."""
        self.latest = self._logged_at = None


@lru_cache(maxsize=256)
def _lock_config(config: LeaderConfig) -> LockConfig:
    """How the key of an election is acquired and held."""
    return LockConfig(
        ttl=config.ttl,
        priority=config.priority,
        note=config.note,
        label=config.label,
        lock_delay=config.lock_delay,
    )


class ElectionBase[TermT: TermBase](PrimitiveBase[TermT]):
    """One leader at a time among all candidates of that name."""

    kind: ClassVar[Kind] = "leader"
    ttl: float
    renew_deadline: float
    retry: float

    @shown_as("LeaderElection.__init__")
    def __init__(
        self,
        name: str | bytes,
        *more: Never,
        ttl: Duration | Unset = UNSET,
        renew_deadline: Duration | Unset = UNSET,
        retry: Duration | Unset = UNSET,
        priority: int | Unset = UNSET,
        note: str | Unset = UNSET,
        label: str | Unset = UNSET,
        lock_delay: Duration | Unset = UNSET,
        on_started: Callback | None = None,
        on_stopped: Callback | None = None,
        require: Iterable[str] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        **others: Unpack[NoOptions],
    ) -> None:
        if more or others:
            refuse_options(f"a {self.kind}", others, ElectionBase.__init__, more and self._takes)
        given = (ttl, renew_deadline, retry, priority, note, label, lock_delay)
        known = None
        if env_load and env_prefix is None:
            known = known_configs(client, self.kind, READERS, LeaderConfig, for_all=False)
        if known is not None:
            config = known.config(given)
        else:
            options = dict(zip(READERS, given, strict=True))
            config = leader_configured(name, options, env_prefix=env_prefix, env_load=env_load)
        self._describe_election(name, config, on_started, on_stopped, require, client)

    @classmethod
    def from_config(  # type: ignore[override]  # most settings of a lock mean nothing to it
        cls,
        name: str | bytes,
        config: LeaderConfig,
        *,
        on_started: Callback | None = None,
        on_stopped: Callback | None = None,
        require: Iterable[str] = (),
        client: Any = None,
    ) -> Self:
        """Describe it by a config; no environment is read."""
        self = cls.__new__(cls)
        self._describe_election(name, config, on_started, on_stopped, require, client)
        return self

    def _describe_election(
        self,
        name: str | bytes,
        config: LeaderConfig,
        on_started: Callback | None,
        on_stopped: Callback | None,
        require: Iterable[str],
        client: Any,
    ) -> None:
        for what, callback in (("on_started", on_started), ("on_stopped", on_stopped)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{what} is {callback!r}: give a function that takes the term")
            if not self._may_await and iscoroutinefunction(callback):
                raise TypeError(f"{what} is a coroutine function, and nobody awaits it in a thread")
        seconds: Any = config  # LeaderConfig has made its durations seconds
        self.ttl, self.renew_deadline = seconds.ttl, seconds.renew_deadline
        self.retry = seconds.retry
        self._more = leader_rules(config, on_started, on_stopped)
        self._numbers = count(1)
        self._won: dict[int, ref[TermT]] = {}
        self._describe(name, _lock_config(config), None, require, client)

    # -- terms --------------------------------------------------------------------------------------

    def _given(self, lease: TermT) -> TermT:
        return self._register(lease)

    def _register(self, term: TermT) -> TermT:
        term.number = number = next(self._numbers)
        for old, reference in list(self._won.items()):
            known = reference()
            if known is None or known._end is not None:
                self._won.pop(old, None)
        self._won[number] = ref(term)
        return term

    async def _enter_block(self) -> TermT:
        term = await self._acquire()
        try:
            await term._tell_started()
            term._enter()
        except LeaseLost:  # while `on_started` ran
            await term._stop()
            term._release_after_loss()
            raise
        except BaseException:
            term._discard()
            raise
        return self._remember(term)

    async def _win(self, stop: StopSignal) -> TermT:
        """Win in the background, unless that is stopped."""
        rt = self._runtime()
        request, options = self._describe_here()
        grant = await AcquireAttempt(rt, request, stop=stop).run(None)
        return self._register(self._hold(rt, options, grant, rt.me()))

    def _terms_here(self) -> list[TermT]:
        """The terms of this very object that are not over: one, unless a store fails."""
        known = [reference() for reference in list(self._won.values())]
        return [term for term in known if term is not None and term._stands]

    def is_leader(self) -> bool:
        """Whether this object's candidate leads: a plain call, and true only until the term's deadline.

        It may have ended the next moment: where that matters call `term.ensure()`, and give
        `term.token` to whatever is written to.
        """
        return bool(self._terms_here())

    def resign(self) -> bool:
        """Step down, if this object's candidate leads; return whether it did. A plain call, from any thread.

        The leader is interrupted (`LeaseLost`, reason `resigned`), and hands over when it has ended.
        """
        resigned = [term._resign() for term in self._terms_here()]
        return True in resigned

    async def _who(self) -> Holder | None:
        holders = (await self._status()).holders
        return next((holder for holder in holders if holder.state != "retained"), None)

    # -- leading for good ---------------------------------------------------------------------------

    async def _run(self, body: Callable[[TermT], Awaitable[Any]], ready: object) -> Any:
        """Lead, again after each loss, until the body has ended by itself."""
        rt = self._runtime()
        failures = LogThrottle(format_key(self.key), rt.now)
        announce(ready)
        while True:
            leads = False
            try:
                term = await self._enter_block()
                leads = True
                failures.clear()
                try:
                    done = await body(term)
                except BaseException as error:
                    await self._take_entered()._leave(error)
                    raise
                await self._take_entered()._leave(None)
                return done
            except LeaseLost as loss:
                if loss.key != self.key or loss.reason == "closed":
                    raise
                if loss.reason != "resigned":
                    continue
            except BackendUnavailable as error:
                if leads:  # the body's own
                    raise
                failures.report(error)
            await rt.signal().wait(self._pause())

    def _pause(self) -> float:
        """Seconds in which others can come first, and a store come back."""
        return self.retry * uniform(1, JITTER)  # noqa: S311


async def until_lost(term: TermBase) -> None:
    """The body of a leader without one: wait for the end of the term, and raise `LeaseLost`."""
    await term._wait_lost()
    term.ensure()


def announce(ready: object) -> None:
    """Call a function, set an event's flag or a future's result, whichever `ready` is; None is nobody.

    Raises `TypeError` for anything else.
    """
    if ready is None:
        return
    if callable(ready):
        ready()
    elif hasattr(ready, "set_result"):
        if not ready.done():  # type: ignore[attr-defined]
            ready.set_result(None)
    elif hasattr(ready, "set"):
        ready.set()
    else:
        raise TypeError(f"ready is {ready!r}: give a function, an event or a future")


# -- campaigns --------------------------------------------------------------------------------------------


class CampaignBase[TermT: TermBase]:
    """A candidate in the background, which stands again after each term; made by elections only."""

    def __init__(self, election: ElectionBase[TermT]) -> None:
        self.election = election
        self._rt: Runtime | None = None
        self._job: Job
        self._stop = StopSignal()
        self._term: TermT | None = None
        self._waiting: list[Signal] = []
        """Signals that are set at each change of whether it leads, or is guarded."""
        self._guarded: dict[object, TermT] = {}
        """The blocks that rely on a term."""
        self._failures: LogThrottle
        self._generation = generation.number

    @property
    def term(self) -> TermT | None:
        """The term by which it leads at this moment; None while it doesn't."""
        term = self._term
        return term if term is not None and term._stands else None

    def is_leader(self) -> bool:
        """Whether it leads: a plain call, and true only until the term's deadline."""
        return self.term is not None

    def resign(self) -> bool:
        """Step down, if it leads, and stand again after the others; return whether it led.

        A plain call, from any thread. Blocks of `guard()` are interrupted; it hands over when they have
        ended.
        """
        term = self.term
        return term is not None and term._resign()

    @property
    def error(self) -> Exception | None:
        """Why it could not stand at its last try; None while all is well."""
        return self._failures.latest if self._rt is not None else None

    def _running(self) -> Runtime:
        if self._rt is None:
            raise NotHeld("the campaign has not begun: enter it with `with`, or `async with`")
        if self._generation != generation.number:
            raise NotHeld("the campaign goes on in the process that this one was forked from")
        return self._rt

    # -- waiting ------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `condition()`, which is evaluated after each change; False at the timeout."""
        rt = self._running()
        until = None if timeout is None else rt.now() + timeout
        while True:
            signal = rt.signal()
            self._waiting.append(signal)  # first, so that no change from now on is missed
            try:
                if condition():
                    return True
                left = None if until is None else until - rt.now()
                if left is not None and left <= 0:
                    return False
                await signal.wait(left)
            finally:
                self._waiting.remove(signal)

    def _changed(self) -> None:
        for signal in list(self._waiting):
            signal.set()

    async def _wait(self, timeout: float | None) -> bool:
        """Wait until it leads; False at the timeout, or when it has ended."""
        await self._until(lambda: self.is_leader() or self._stop.is_set, timeout)
        return self.is_leader()

    async def _wait_lost(self, timeout: float | None) -> bool:
        """Wait until it does not lead; False at the timeout."""
        self._running()
        term = self.term
        if term is None:
            return True
        await term._wait_lost(timeout)
        return not term._stands

    async def _until_unguarded(self, term: TermT, rt: Runtime) -> bool:
        """Wait for the blocks that rely on a term, until its deadline; return whether all have ended."""
        left = max(term._deadline - rt.now(), 0.0)
        return await self._until(lambda: not self._guarded, left)

    # -- in the background --------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._rt is not None:
            raise RuntimeError("this campaign was begun before: make another with campaign()")
        rt, name = self.election._runtime(), format_key(self.election.key)
        self._failures = LogThrottle(name, rt.now)
        self._rt = rt
        self._job = rt.spawn(self._stand(), f"dibs-{name}")

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
        try:
            while not self._stop.is_set:
                try:
                    term = await self.election._win(self._stop)
                    self._failures.clear()
                    await self._lead(term)
                    if term._end == "closed":
                        self._give_up()
                    if term._end != "resigned":
                        continue
                except AttemptStopped:
                    raise
                except Exception as error:
                    if not isinstance(error, DibsError):
                        log.debug("the campaign stumbled", exc_info=True)
                    self._failures.report(error)
                await self._stop.wait(self._running().signal(), self.election._pause())
        except AttemptStopped:
            pass

    def _give_up(self) -> None:
        """Stand no more."""
        self._stop.set()
        self._changed()

    async def _lead(self, term: TermT) -> None:
        if self._stop.is_set:  # while it was elected: it never began
            term._resign()
            return await term._hand_over()
        self._term = term
        self._changed()
        try:
            await term._tell_started()
            ended = self._running().signal()
            term._watch(ended)
            await self._stop.wait(ended, None)
        finally:
            await self._step_down(term)

    async def _step_down(self, term: TermT) -> None:
        """End the term; when another candidate can lead, nothing is done by it any more."""
        term._resign()  # unless it was lost
        try:
            all_ended = await self._until_unguarded(term, self._running())
            await term._stop()
            if all_ended:
                await term._hand_over()
        except BaseException:  # cancelled: nobody can wait any more
            if not self._guarded:
                term._release_after_loss()
            raise
        finally:
            self._term = None


class GuardedBase[TermT: TermBase]:
    """A block that relies on the term of a campaign; made by campaigns only."""

    def __init__(self, campaign: CampaignBase[TermT]) -> None:
        self._campaign = campaign
        self._term: TermT
        self._guard: Guard

    def set(self) -> None:
        """The term has ended."""
        self._guard.fire()

    def _begin(self) -> TermT:
        campaign = self._campaign
        self._guard = campaign._running().guard()
        self._guard.enter()
        term = campaign.term
        if term is None:
            key = campaign.election.key
            raise NotHeld(f"this process does not lead {format_key(key)}", key=key)
        self._term = campaign._guarded[self] = term
        term._watch(self)
        return term

    def _end(self, exc: BaseException | None) -> None:
        campaign, term = self._campaign, self._term
        ours = self._guard.leave(exc)
        if campaign._guarded.pop(self, None) is not None:
            term._unwatch(self)
        campaign._changed()
        if not term._stands:
            raise_loss(term._loss(), exc, ours)
