"""Leader election: one key that one candidate at a time keeps, while the others wait for it.

A candidate stands in a `with` block, by `run()`, or in the background by a campaign. A term is a lease that
is renewed often, and trusted until the election's own deadline.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from inspect import isawaitable, iscoroutinefunction
from itertools import count
from random import uniform
from typing import Any, ClassVar, Never, NoReturn, Self, Unpack
from weakref import ref

from dibs.config import (
    UNSET,
    Duration,
    LockConfig,
    Readers,
    Unset,
    readers_of,
    safe_lock_delay,
    safe_ttl,
    seconds,
)
from dibs.core.names import Kind
from dibs.core.timing import trusted
from dibs.errors import BackendUnavailable, DibsError, LeaseLost, NotHeld, UnsafeTiming
from dibs.locks.acquire import AcquireAttempt, AttemptStopped, StopSignal
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import LeaseBase, raise_loss
from dibs.locks.messages import format_key
from dibs.locks.requests import Grant, HoldOptions, LeaseRules, NoOptions, refuse_options, shown_as
from dibs.model import Holder, Promise
from dibs.process import generation
from dibs.runtime.port import Guard, Job, Runtime, Signal
from dibs.settings import config_of

log: logging.Logger = logging.getLogger("dibs")

JITTER = 1.2
"""A pause between two tries is `retry` times 1 to this, so that candidates do not try all at once."""

LOG_EVERY = 30.0
"""Seconds between two warnings about a candidate that goes on failing."""

GRACE = 1.0
"""Seconds that the end of a campaign waits for a store that does not answer."""

type Callback = Callable[[Any], object]
"""Called with a term; in an event loop it can be a coroutine function."""


# -- options ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderConfig:
    """How a leader is elected and stays one; give it to `LeaderElection.from_config`."""

    ttl: Duration = 15.0
    """How long the store keeps a leader that does not renew: the time that its crash costs."""
    renew_deadline: Duration | None = None
    """How long a leader goes on without a renewal, less than `ttl`; None: 2/3 of `ttl`."""
    retry: Duration | None = None
    """Time between two renewals, and of a candidate's pause; None: 1/5 of `renew_deadline`."""
    priority: int = 0
    """Among waiting candidates, the highest comes first."""
    note: str = ""
    """Why; for people."""
    label: str = ""
    """What to add to the owner's name; for people."""
    lock_delay: Duration = 0.0
    """How long nobody leads after the lease of a leader has expired."""
    _readers: ClassVar[Readers]
    _for_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ttl = safe_ttl(self.ttl)
        given, retry = self.renew_deadline, self.retry
        deadline = ttl * 2 / 3 if given is None else seconds(given, "renew_deadline")
        retry = deadline / 5 if retry is None else seconds(retry, "retry")
        _check(ttl, deadline, retry)
        object.__setattr__(self, "lock_delay", safe_lock_delay(self.lock_delay))
        for field, value in (("ttl", ttl), ("renew_deadline", deadline), ("retry", retry)):
            object.__setattr__(self, field, value)


LeaderConfig._readers = readers_of(LeaderConfig, renew_deadline=str, retry=str)


def _check(ttl: float, deadline: float, retry: float) -> None:
    if not deadline < ttl:
        raise UnsafeTiming(
            f"renew_deadline is {deadline:g} s and ttl {ttl:g} s: a leader must step down before the "
            "store lets another one lead, so give a longer ttl= or a shorter renew_deadline="
        )
    if not retry > 0:
        raise UnsafeTiming("retry is 0: a leader would do nothing but renew")
    believed = min(deadline, trusted(ttl))
    if not JITTER * retry < believed:
        raise UnsafeTiming(
            f"retry is {retry:g} s, and a leader steps down {believed:g} s after its last renewal: "
            f"{JITTER:g} times retry must be less, or one lost message would end its term"
        )


@lru_cache(maxsize=256)
def _lock_config(config: LeaderConfig) -> LockConfig:
    """How the key of an election is acquired and held."""
    shared = ("ttl", "priority", "note", "label", "lock_delay")
    return LockConfig(**{field: getattr(config, field) for field in shared})


# -- terms ------------------------------------------------------------------------------------------------


class TermBase(LeaseBase):
    """A term on both sides; made by elections only."""

    __slots__ = ("_begun", "number")

    number: int
    """Number of the term among those of this candidate, from 1. Terms of all candidates rise by `token`."""

    def __init__(
        self, rt: Runtime, key: bytes, options: HoldOptions, grant: Grant, me: object
    ) -> None:
        self.number = 0
        self._begun = False
        """`on_started` was called, and `on_stopped` was not."""
        super().__init__(rt, key, options, grant, me)

    async def _start(self) -> None:
        """Call `on_started`."""
        self._begun = True
        await self._call_back("on_started", self._rules.on_started)

    async def _stop(self) -> None:
        """Call `on_stopped`, once, if `on_started` was called."""
        if self._begun and generation.number == self._generation:
            self._begun = False
            await self._call_back("on_stopped", self._rules.on_stopped)

    async def _call_back(self, name: str, callback: Callback | None) -> None:
        try:
            result = None if callback is None else callback(self)
            if isawaitable(result):
                await result
        except Exception:
            log.exception("%s of %s failed", name, format_key(self.key))

    def _resign(self) -> bool:
        """End it on request of the leader. Its body is interrupted, and hands it over at its end."""
        if not self._finish("resigned"):
            return False
        self._interrupt()
        self._set_end_signals()
        log.info("%s: the leader with token %d resigns", format_key(self.key), self.token)
        return True

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended. Nobody else leads before `on_stopped` has returned."""
        no_other_error = self._exit_block(exc)
        try:
            await self._stop()
        finally:
            await self._end_block(exc, no_other_error)

    async def _hand_over(self) -> None:
        """Release it after its end here, so that another candidate can lead at once."""
        if not self._given_up and generation.number == self._generation:
            self._given_up = True
            await self._send_release()

    async def _renew(self, ttl: Duration | None) -> None:
        if ttl is not None:
            raise TypeError("a term has its election's ttl: write renew()")
        await super()._renew(None)

    def detach(self) -> NoReturn:
        """Never works: a candidate leads by itself. Raises `TypeError`."""
        raise TypeError("a term can't be handed to another process: resign, and let it be elected")


# -- elections --------------------------------------------------------------------------------------------


class ElectionBase[TermT: TermBase](PrimitiveBase[TermT]):
    """A leader election on both sides."""

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
        on_started: Callable[[TermT], object] | None = None,
        on_stopped: Callable[[TermT], object] | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        **others: Unpack[NoOptions],
    ) -> None:
        """Describe an election. The store is first asked when a candidate stands. Defaults are in brackets.

        - `ttl` (15 s): how long the store keeps a leader that does not renew.
        - `renew_deadline` (2/3 of `ttl`): how long a leader goes on without a renewal.
        - `retry` (1/5 of `renew_deadline`): time between two renewals, and of a candidate's pause.
        - `lock_delay` (0): how long nobody leads after the lease of a leader expired.
        - `on_started`, `on_stopped`: called with each term. The others are those of a `Lock`.
        """
        if more or others:
            refuse_options(f"a {self.kind}", others, ElectionBase.__init__, more and self._takes)
        given = (ttl, renew_deadline, retry, priority, note, label, lock_delay)
        config = config_of(LeaderConfig, self.kind, name, given, client, env_prefix, env_load)
        self._describe_election(name, config, (on_started, on_stopped), require, client)

    @classmethod
    def from_config(  # type: ignore[override]  # most settings of a lock mean nothing to it
        cls,
        name: str | bytes,
        config: LeaderConfig,
        *,
        on_started: Callable[[TermT], object] | None = None,
        on_stopped: Callable[[TermT], object] | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
    ) -> Self:
        """Make one from a config, without reading the environment."""
        self = cls.__new__(cls)
        self._describe_election(name, config, (on_started, on_stopped), require, client)
        return self

    def _describe_election(
        self,
        name: str | bytes,
        config: Any,  # a LeaderConfig, whose durations are seconds
        callbacks: tuple[Callback | None, Callback | None],
        require: Promise | Iterable[Promise],
        client: Any,
    ) -> None:
        for what, callback in zip(("on_started", "on_stopped"), callbacks, strict=True):
            if callback is not None and not callable(callback):
                raise TypeError(f"{what} is {callback!r}: give a function that takes the term")
            if not self._may_await and iscoroutinefunction(callback):
                raise TypeError(f"{what} is a coroutine function, and nobody awaits it in a thread")
        self.ttl, self.renew_deadline, self.retry = config.ttl, config.renew_deadline, config.retry
        on_started, on_stopped = callbacks
        self._rules = LeaseRules(
            self.retry, self.renew_deadline, on_started=on_started, on_stopped=on_stopped
        )
        self._numbers = count(1)
        self._won: dict[int, ref[TermT]] = {}
        """Terms of this object by their numbers, some of them over."""
        self._describe(name, _lock_config(config), None, require, client)

    # -- terms --------------------------------------------------------------------------------------

    def _given(self, lease: TermT) -> TermT:
        """Number a new term, and remember it while it lasts."""
        for old, reference in list(self._won.items()):
            known = reference()
            if known is None or known._end is not None:
                self._won.pop(old, None)
        lease.number = number = next(self._numbers)
        self._won[number] = ref(lease)
        return lease

    async def _enter_block(self) -> TermT:
        term = await self._acquire()
        try:
            await term._start()
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
        return self._given(self._hold(rt, options, grant, rt.me()))

    def _terms_here(self) -> list[TermT]:
        """The terms of this object that are not over: one, unless a store fails."""
        known = [reference() for reference in list(self._won.values())]
        return [term for term in known if term is not None and term._stands]

    def is_leader(self) -> bool:
        """Return whether the candidate of this object leads, without asking the store.

        The term can end the next moment. Where that matters, call `term.ensure()`, and pass `term.token` on
        with each write.
        """
        return bool(self._terms_here())

    def resign(self) -> bool:
        """Step down, if the candidate of this object leads; return whether it did. Works in any thread.

        The leader is interrupted (`LeaseLost`, reason `resigned`), and hands over when its body has ended.
        """
        resigned = [term._resign() for term in self._terms_here()]
        return True in resigned

    async def _who(self) -> Holder | None:
        holders = (await self._status()).holders
        return next((holder for holder in holders if holder.state != "retained"), None)

    # -- leading for good ---------------------------------------------------------------------------

    async def _run[R](self, body: Callable[[TermT], Awaitable[R]], ready: object) -> R:
        """Lead, again after each loss, until the body ends by itself."""
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
        """Seconds until the next try: another candidate can come first, and the store recover."""
        return self.retry * uniform(1, JITTER)  # noqa: S311


async def until_lost(term: TermBase) -> None:
    """Wait for the end of the term, and raise `LeaseLost`: what a leader without a body does."""
    await term._wait_lost()
    term.ensure()


def announce(ready: object) -> None:
    """Call a function, set an event, or set the result of a future. Raises `TypeError` for anything else."""
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


class LogThrottle:
    """Logs the first failure of a candidate, then at most one every `LOG_EVERY` seconds."""

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
            self._logged_at = now  # only now: else frequent failures would never be logged again
            log.warning("the campaign for %s failed and will retry: %s", self._of, error)

    def clear(self) -> None:
        """Log the next failure again."""
        self.latest = self._logged_at = None


class CampaignBase[TermT: TermBase]:
    """A candidate in the background, on both sides; made by elections only."""

    def __init__(self, election: ElectionBase[TermT]) -> None:
        self.election: ElectionBase[TermT] = election
        self._rt: Runtime | None = None
        self._job: Job
        self._stop = StopSignal()
        self._term: TermT | None = None
        self._waiting: list[Signal] = []
        """Signals to set when it begins or ceases to lead, and when a guarded block ends."""
        self._guarded: dict[object, TermT] = {}
        """The `guard()` blocks that rely on a term."""
        self._failures: LogThrottle
        self._generation = generation.number

    @property
    def term(self) -> TermT | None:
        """The current term; None while it does not lead."""
        term = self._term
        return term if term is not None and term._stands else None

    def is_leader(self) -> bool:
        """Return whether it leads, without asking the store. The term can end the next moment."""
        return self.term is not None

    def resign(self) -> bool:
        """Step down, if it leads, and stand again after the others; return whether it led.

        Works in any thread. Blocks of `guard()` are interrupted; it hands over when they have ended.
        """
        term = self.term
        return term is not None and term._resign()

    @property
    def error(self) -> Exception | None:
        """The error of the last try to lead; None if it worked."""
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

    async def _until_unguarded(self, term: TermT, rt: Runtime) -> None:
        """Wait for the blocks that rely on a term, until its deadline."""
        left = max(term._deadline - rt.now(), 0.0)
        await self._until(lambda: not self._guarded, left)

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
            await term._start()
            ended = self._running().signal()
            term._signal_end(ended)
            await self._stop.wait(ended, None)
        finally:
            await self._step_down(term)

    async def _step_down(self, term: TermT) -> None:
        """End the term. Release it once guarded blocks and `on_stopped` have ended."""
        term._resign()  # unless it was lost
        try:
            await self._until_unguarded(term, self._running())
            await term._stop()
            if not self._guarded:
                await term._hand_over()
        except BaseException:  # cancelled: nobody can wait any more
            if not self._guarded:
                term._release_after_loss()
            raise
        finally:
            self._term = None


class GuardedBase[TermT: TermBase]:
    """A block that relies on the term of a campaign, on both sides; made by campaigns only."""

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
        term._signal_end(self)
        return term

    def _end(self, exc: BaseException | None) -> None:
        campaign, term = self._campaign, self._term
        no_other_error = self._guard.leave(exc)
        if campaign._guarded.pop(self, None) is not None:
            term._signal_no_more(self)
        if campaign._term is not term and term not in campaign._guarded.values():
            term._release_after_loss()  # the campaign has not waited for this block
        campaign._changed()
        if not term._stands:
            raise_loss(term._loss(), exc, no_other_error)
