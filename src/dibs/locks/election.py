"""A leader election: one key that one candidate at a time keeps, while the others wait for it."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from itertools import count
from random import uniform
from typing import Any, ClassVar, Never, Self, Unpack
from weakref import ref

from dibs.config import UNSET, Duration, LockConfig, Unset
from dibs.core.names import Kind
from dibs.errors import BackendUnavailable, LeaseLost
from dibs.locks.acquire import AcquireAttempt, StopSignal
from dibs.locks.base import PrimitiveBase
from dibs.locks.messages import key_shown
from dibs.locks.requests import NoOptions, refuse_options, shown_as
from dibs.locks.term import JITTER, Callback, LeaderConfig, LeaderTerms, TermBase, leader_configured
from dibs.model import Holder

log = logging.getLogger("dibs")

EVERY = 30.0
"""While it goes on failing it is told again after so many seconds."""


class Complaints:
    """What goes wrong with one thing."""

    def __init__(self, of: str, now: Callable[[], float]) -> None:
        self._of = of
        self._now = now
        self._told_at: float | None = None
        self.latest: Exception | None = None
        """What went wrong last; None once it works again."""

    def tell(self, error: Exception) -> None:
        """It has failed, and will be tried again."""
        self.latest = error
        now = self._now()
        if self._told_at is None or now - self._told_at >= EVERY:
            self._told_at = now  # only where it is told: else nothing but the first would ever be
            log.warning("the campaign for %s failed and will retry: %s", self._of, error)

    def clear(self) -> None:
        """It works."""
        self.latest = self._told_at = None


class ElectionBase[TermT: TermBase](PrimitiveBase[TermT]):
    """One leader at a time among all who are candidates by this name."""

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
        given = {
            "ttl": ttl,
            "renew_deadline": renew_deadline,
            "retry": retry,
            "priority": priority,
            "note": note,
            "label": label,
            "lock_delay": lock_delay,
        }
        config = leader_configured(name, given, env_prefix=env_prefix, env_load=env_load)
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
        self._refuse_callback("on_started", on_started)
        self._refuse_callback("on_stopped", on_stopped)
        # LeaderConfig has made them seconds
        self.ttl, self.renew_deadline = config.ttl, config.renew_deadline  # type: ignore[assignment]
        self.retry = config.retry  # type: ignore[assignment]
        self._more = LeaderTerms(self.renew_deadline, self.retry, on_started, on_stopped)
        self._numbers = count(1)
        self._won: dict[int, ref[TermT]] = {}
        hold = LockConfig(
            ttl=config.ttl,
            priority=config.priority,
            note=config.note,
            label=config.label,
            lock_delay=config.lock_delay,
        )
        self._describe(name, hold, None, require, client)

    def _refuse_callback(self, name: str, callback: object) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(f"{name} is {callback!r}: give a function that takes the term")
        if not self._may_await and iscoroutinefunction(callback):
            raise TypeError(f"{name} is a coroutine function, and nobody awaits it in a thread")

    # -- terms --------------------------------------------------------------------------------------

    def _given(self, lease: TermT) -> TermT:
        return self._register(lease)

    async def _enter_block(self) -> TermT:
        term = await self._acquire()
        try:
            await term._tell_started()
            term._enter()
        except LeaseLost:  # while `on_started` ran
            await term._stop()
            term._hand_back()
            raise
        except BaseException:
            term._drop()
            raise
        return self._remember(term)

    async def _win(self, stop: StopSignal) -> TermT:
        """Win in the background, unless that is stopped."""
        rt = self._runtime()
        ask, terms = self._describe_here()
        grant = await AcquireAttempt(rt, ask, stop=stop).run(None)
        return self._register(self._hold(rt, terms, grant, rt.me()))

    def _register(self, term: TermT) -> TermT:
        term.number = number = next(self._numbers)
        for old, reference in list(self._won.items()):
            known = reference()
            if known is None or known._end is not None:
                self._won.pop(old, None)
        self._won[number] = ref(term)
        return term

    def _terms_here(self) -> list[TermT]:
        """The terms that were won by this very object and stand: one, unless a store lies."""
        known = [reference() for reference in list(self._won.values())]
        return [term for term in known if term is not None and term._stands]

    def is_leader(self) -> bool:
        """Whether this object's candidate leads: a plain call, and true only until the term's deadline.

        It may have ended the next moment: where that matters call `term.ensure()`, and give
        `term.token` to whatever is written to.
        """
        return bool(self._terms_here())

    def resign(self) -> bool:
        """Step down, if this object's candidate leads; tell whether it did. A plain call, from any thread.

        Whoever leads is interrupted (`LeaseLost`, reason `resigned`) and hands over when it has ended.
        """
        resigned = [term._resign() for term in self._terms_here()]
        return True in resigned

    async def _who(self) -> Holder | None:
        holders = (await self._status()).holders
        return next((holder for holder in holders if holder.state != "kept"), None)

    # -- leading for good ---------------------------------------------------------------------------

    async def _run(self, body: Callable[[TermT], Awaitable[Any]], ready: object) -> Any:
        """Lead, again after each loss, until the body has ended by itself."""
        rt = self._runtime()
        complaints = Complaints(key_shown(self.key), rt.now)
        announce(ready)
        while True:
            leads = False
            try:
                term = await self._enter_block()
                leads = True
                complaints.clear()
                return await self._led(term, body)
            except LeaseLost as loss:
                if loss.key != self.key or loss.reason == "closed":
                    raise
                if loss.reason == "resigned":
                    await self._pause()
            except BackendUnavailable as error:
                if leads:  # the body's own
                    raise
                complaints.tell(error)
                await self._pause()

    async def _led(self, term: TermT, body: Callable[[TermT], Awaitable[Any]]) -> Any:
        try:
            done = await body(term)
        except BaseException as error:
            await self._take_entered()._leave(error)
            raise
        await self._take_entered()._leave(None)
        return done

    async def _pause(self) -> None:
        """Let others come first, and a store come back."""
        await self._runtime().signal().wait(self.retry * uniform(1, JITTER))  # noqa: S311


async def until_lost(term: TermBase) -> None:
    """What a leader does that has nothing else to do. Raises `LeaseLost` at the end."""
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
