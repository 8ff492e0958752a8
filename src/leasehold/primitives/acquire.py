"""Acquiring: try, queue, wait for a push or for time, confirm, give up without a trace.

However this ends other than by a grant, the id is given up: after a time-out in the foreground, after
a cancellation, an interrupt or an error in the background, with the id buried if a copy of its
Acquire may still be under way.
"""

from math import inf
from typing import NamedTuple

from leasehold.core.names import fingerprint
from leasehold.core.timing import DRIFT, FRONT, burial, claim_window, trusted
from leasehold.errors import (
    AcquireTimeout,
    BackendUnavailable,
    Corrupt,
    Forbidden,
    LeaseholdError,
)
from leasehold.model import (
    Acquire,
    Failed,
    Gone,
    Granted,
    Holder,
    Inspect,
    Queued,
    Refused,
    Release,
    Reply,
    Status,
    Wakeup,
)
from leasehold.primitives.ids import new_id
from leasehold.primitives.pending import Pending
from leasehold.primitives.telling import contention, key_shown
from leasehold.runtime.port import Answer, Runtime

CLOCKS_DIFFER = 0.001
"""So much later than the store said is surely not too early, in seconds."""


UNHEARD = 0.05
"""How often a waiter asks that nobody can push to, in seconds."""

BRIEFLY = 1.0
"""Seconds that a store has for an answer also where less is left to wait."""


class Ask(NamedTuple):
    """What is wanted."""

    key: bytes
    owner: str
    ttl: float
    units: int = 1
    capacity: int = 1
    priority: int = 0
    note: str = ""
    tokens: int = 1
    floor: int = 0
    lock_delay: float = 0.0


class Grant(NamedTuple):
    """What was got."""

    id: str
    token: int
    slots: tuple[int, ...]
    since: float
    """When it was asked for, or pushed, at the earliest."""
    deadline: float
    claim_by: float | None
    """It was pushed, stands for a window, and should be claimed by then if it is still wanted."""
    doubtful: bool
    """A copy of its Acquire may still be under way."""
    pending: Pending | None = None
    """It stands once a transaction of the user's own commits."""


class Acquiring:
    """One id's way to a grant."""

    __slots__ = (
        "_ahead",
        "_ask",
        "_doubtful",
        "_id",
        "_in_flight",
        "_inbox",
        "_over",
        "_queued",
        "_rt",
    )

    def __init__(self, rt: Runtime, ask: Ask) -> None:
        self._rt = rt
        self._ask = ask
        self._id = new_id()
        self._doubtful = False
        self._in_flight = False
        self._inbox = ""
        """Where the store was told to push."""
        self._over = False
        self._queued: Answer | None = None
        self._ahead: int | None = None

    async def run(self, wait: float | None) -> Grant:
        """Acquire within `wait` seconds (None: for ever; 0: one try, which raises when refused)."""
        try:
            until, enough, patience = inf, inf, None
            if wait is not None:
                until = self._rt.now() + wait
                enough, patience = max(until, self._rt.now() + BRIEFLY), max(wait, BRIEFLY)
            self._in_flight = True
            try:
                if not self._rt.is_ready:
                    await self._rt.ready()
                answer = await self._rt.call(self._command(wait != 0), patience)
                if wait != 0:
                    _not_busy(answer, self._ask.key)
            except BackendUnavailable:
                self._doubtful = True
                if self._rt.now() >= enough:
                    raise
                answer = await self._send(queue=wait != 0, until=until, bounded=wait is not None)
            self._in_flight = False
            if answer.resent:
                self._doubtful = True
            if type(answer.reply) is Granted:
                return self._granted(answer.reply, answer.sent)
            if wait == 0:
                return self._refused(answer.reply)
            return await self._in_turn(wait, until, answer)
        except BaseException:
            if not self._over:
                self._rt.keeper.abandon(self._ask.key, self._id, self._burial())
            raise
        finally:
            if self._queued is not None:
                self._rt.mail.forget(fingerprint(self._id))

    def _refused(self, reply: Reply) -> Grant:
        """The one try did not succeed."""
        self._over = not self._doubtful and isinstance(reply, Refused | Failed)
        if isinstance(reply, Refused):
            raise refusal(self._ask, reply)
        raise unexpected(reply, self._ask.key)

    async def _in_turn(self, wait: float | None, until: float, answer: Answer) -> Grant:
        while True:
            reply = answer.reply
            if isinstance(reply, Granted):
                return self._granted(reply, answer.sent)
            if isinstance(reply, Queued):
                grant = await self._wait_in_queue(answer, reply, until)
            elif isinstance(reply, Refused):
                grant = None
                await self._wait_outside(reply, until)
            elif isinstance(reply, Gone):
                grant = None
                self._begin_anew()
            else:
                raise unexpected(reply, self._ask.key)
            if grant is not None:
                return grant
            if self._rt.now() >= until:
                await self._withdraw(wait)
            answer = await self._send(queue=True, until=until, bounded=wait is not None)

    # -- asking -------------------------------------------------------------------------------------

    async def _send(self, *, queue: bool, until: float, bounded: bool = True) -> Answer:
        """Ask until the store answers, or until there is no more time to ask."""
        rt = self._rt
        limit, pause = None, 0.02
        while True:
            try:
                if not rt.is_ready:
                    await rt.ready()
                self._in_flight = True
                patience = max(until - rt.now(), BRIEFLY) if bounded else None
                answer = _not_busy(await rt.call(self._command(queue), patience), self._ask.key)
                self._in_flight = False
            except BackendUnavailable:
                self._doubtful = True
                if limit is None:
                    limit = until if bounded else rt.now() + rt.connect_timeout
                left = limit - rt.now()
                if left <= 0:
                    raise
                await rt.signal().wait(min(pause, left))
                pause = min(2 * pause, 1.0)
                continue
            self._doubtful = self._doubtful or answer.resent
            if isinstance(answer.reply, Failed):
                raise unexpected(answer.reply, self._ask.key)
            return answer

    def _command(self, queue: bool) -> Acquire:
        ask = self._ask
        self._inbox = self._rt.inbox
        return Acquire(
            ask.key,
            self._id,
            ask.owner,
            ask.ttl,
            ask.units,
            ask.capacity,
            queue,
            max(ask.ttl, 30.0),
            ask.priority,
            ask.note,
            ask.tokens,
            ask.floor,
            ask.lock_delay,
            self._inbox,
        )

    # -- waiting ------------------------------------------------------------------------------------

    async def _wait_in_queue(self, answer: Answer, reply: Queued, until: float) -> Grant | None:
        """Wait for a push, or until it is worth asking again; None means: ask again."""
        rt = self._rt
        self._queued, self._ahead = answer, reply.position
        pause = reply.recheck_in + CLOCKS_DIFFER
        if reply.position >= FRONT:
            # Should all at the front be dead, somebody behind them must speak: the farther back, the rarer,
            # so that a long queue is no herd.
            pause = min(pause, claim_window(self._ask.ttl) * (1 + reply.position) / FRONT)
        if not rt.inbox:
            await rt.listen()
        if rt.inbox != self._inbox:
            return None  # ask again, so that the store learns where to push
        if not self._inbox:
            pause = min(pause, UNHEARD)
        signal = rt.signal()
        rt.mail.expect(fingerprint(self._id), signal)
        left = until - rt.now()
        if await signal.wait(max(min(pause, left), 0.0)):
            push = signal.value
            if isinstance(push, Wakeup) and push.event == "granted":
                return self._pushed(push, answer.sent, reply.now)
        return None

    async def _wait_outside(self, reply: Refused, until: float) -> None:
        """There was no place to be had: try again when time may have changed that."""
        if reply.reason == "too_large":
            self._over = True
            raise refusal(self._ask, reply)
        left = until - self._rt.now()
        pause = min(max(reply.recheck_in, 0.05), 1.0)
        await self._rt.signal().wait(max(min(pause, left), 0.0))

    def _begin_anew(self) -> None:
        """Our id ended: its grant went unclaimed while we were paused. Queue again, as another."""
        self._rt.mail.forget(fingerprint(self._id))
        self._id = new_id()
        self._doubtful = False

    # -- ends ---------------------------------------------------------------------------------------

    def _granted(self, reply: Granted, sent: float) -> Grant:
        deadline = sent + trusted(reply.ttl)
        return Grant(self._id, reply.token, reply.slots, sent, deadline, None, self._doubtful)

    def _pushed(self, push: Wakeup, sent: float, store_now: float) -> Grant | None:
        """A pushed grant, if it can be trusted to stand for a while; else None: confirm it.

        The store granted at `granted_at`, and answered our last message, sent at `sent`, at
        `store_now`; so by our clock, which may run slower, it granted no earlier than `sent` plus
        nearly the difference.
        """
        if not self._rt.capabilities.clock or push.granted_at < store_now or push.token < 1:
            return None
        granted = sent + (1 - DRIFT) * (push.granted_at - store_now)
        granted = min(granted, self._rt.now())  # should the store's clock have been stepped
        claim_by = granted + push.window / 3
        if self._rt.now() >= claim_by:
            return None
        deadline = granted + trusted(push.window)
        return Grant(self._id, push.token, push.slots, granted, deadline, claim_by, self._doubtful)

    async def _withdraw(self, wait: float | None) -> None:
        """The time is over: leave the queue, and say who is in the way."""
        rt, key = self._rt, self._ask.key
        await rt.call(Release(key, self._id, bury=self._burial()))
        self._over = True
        try:
            status = (await rt.call(Inspect(key))).reply
        except LeaseholdError:
            status = None
        holders = status.holders if isinstance(status, Status) else ()
        raise AcquireTimeout(
            f"{contention(key, holders, self._ahead)}; gave up after {wait:g} s",
            key=key,
            holders=holders[:8],
            position=self._ahead,
            retry_after=_soonest(holders),
        )

    def _burial(self) -> float:
        """A late copy of our Acquire must find the id buried; without one there is nothing to bury."""
        if self._doubtful or self._in_flight:
            return burial(self._rt.call_timeout)
        return 0.0


def refusal(ask: Ask, reply: Refused) -> LeaseholdError:
    """The error for units that are not to be had now, or ever."""
    if reply.reason == "too_large":
        return LeaseholdError(
            f"{ask.units} units of {key_shown(ask.key)} can't be had: "
            f"the capacity it was last declared with is smaller",
            key=ask.key,
        )
    return AcquireTimeout(
        contention(ask.key, reply.holders, None),
        key=ask.key,
        holders=reply.holders,
        retry_after=reply.recheck_in,
    )


def _soonest(holders: tuple[Holder, ...]) -> float | None:
    return min((holder.expires_in for holder in holders), default=None)


def _not_busy(answer: Answer, key: bytes) -> Answer:
    """A key that somebody's own transaction keeps, or whose server is away, is tried again."""
    reply = answer.reply
    if type(reply) is Failed and reply.reason in ("busy", "away"):
        raise unexpected(reply, key)
    return answer


def unexpected(reply: Reply, key: bytes) -> LeaseholdError:
    """The error for a reply that is none of those that a command should get."""
    if not isinstance(reply, Failed):
        return LeaseholdError(f"the store answered with {reply!r}", key=key)
    message = f"{key_shown(key)}: {reply.detail}"
    if reply.reason in ("busy", "away"):
        error = BackendUnavailable(message, key=key)
        error.busy = reply.reason == "busy"
        return error
    kinds = {"forbidden": Forbidden, "corrupt": Corrupt}
    return kinds.get(reply.reason, LeaseholdError)(message, key=key)
