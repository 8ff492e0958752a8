"""Acquire: try, queue, wait for a notification or for time, confirm, and give up without a trace.

However this ends other than by a grant, the id is given up: after a time-out in the foreground, after
a cancellation, an interrupt or an error in the background, with a tombstone if a copy of its Acquire
may still be under way.
"""

from contextlib import suppress
from math import inf

from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.core.timing import DRIFT, burial, trusted
from dibs.errors import BackendUnavailable, Deadlock, DibsError
from dibs.locks.deadlock import Lookout, first_due
from dibs.locks.messages import ASIDE, not_busy, refusal, timed_out, unexpected
from dibs.locks.requests import Ask, Grant, new_id
from dibs.locks.waiting import OnWait
from dibs.model import Acquire, Failed, Gone, Granted, Queued, Refused, Release, Reply, Wakeup
from dibs.runtime.port import Answer, Runtime

BRIEFLY = 1.0
"""Seconds that a store has for an answer also where less is left to wait."""


class Asking:
    """What `Acquiring` says to the store, and what it must remember of it."""

    __slots__ = ("_ask", "_doubtful", "_id", "_in_flight", "_inbox", "_over", "_rt")

    def __init__(self, rt: Runtime, ask: Ask, lease_id: str | None = None) -> None:
        self._rt = rt
        self._ask = ask
        self._id = lease_id or new_id()
        self._doubtful = False
        """A copy of a command may still be under way."""
        self._in_flight = False
        self._inbox = ""
        """Where the store was told to push."""
        self._over = True
        """There is nothing to be given up."""

    async def _send(self, *, queue: bool, until: float, since: float | None = None) -> Answer:
        """Ask `until` then, or for `connect_timeout` from `since` (unset: from now) if that has no end."""
        rt = self._rt
        limit, pause = until, 0.02
        if until == inf:
            limit = (rt.now() if since is None else since) + rt.connect_timeout
        while True:
            patience = max(limit - rt.now(), BRIEFLY)
            try:
                if not rt.is_ready:
                    await rt.ready(patience)
                self._in_flight, self._over = True, False
                answer = not_busy(await rt.call(self._command(queue), patience), self._ask.key)
                self._in_flight = False
            except BackendUnavailable:
                self._doubtful = True
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
            floor=ask.floor,
            lock_delay=ask.lock_delay,
            inbox=self._inbox,
            address=ask.address,
            trace=ask.trace,
        )

    async def _leave_queue(self) -> None:
        """At once, so that nothing is granted to a place that nobody wants."""
        await self._rt.call(Release(self._ask.key, self._id, bury=self._burial()), ASIDE)
        self._over = True

    def _burial(self) -> float:
        """A late copy of our Acquire must find the id buried; without one there is nothing to bury."""
        if self._doubtful or self._in_flight:
            return burial(self._rt.call_timeout)
        return 0.0


CLOCKS_DIFFER = 0.001
"""So much later than the store said is surely not too early, in seconds."""

UNHEARD = 0.05
"""How often a waiter asks that nobody can push to, in seconds."""


class Acquiring(Asking):
    """One id's way to a grant."""

    __slots__ = ("_ahead", "_due_at", "_lookout", "_on_wait", "_queued", "_since")

    def __init__(
        self,
        rt: Runtime,
        ask: Ask,
        on_wait: OnWait | None = None,
        lease_id: str | None = None,
    ) -> None:
        super().__init__(rt, ask, lease_id)
        self._on_wait = on_wait
        self._lookout: Lookout | None = None
        self._since: float | None = None
        """When it began to wait, in the queue or for a place there."""
        self._due_at = inf
        """When there is something to do besides waiting."""
        self._queued: Answer | None = None
        self._ahead: int | None = None

    async def run(self, wait: float | None) -> Grant:
        """Acquire within `wait` seconds (None: for ever; 0: one try, which raises when refused)."""
        try:
            began = self._rt.now()
            until, enough, patience = inf, inf, self._rt.connect_timeout
            if wait is not None:
                patience = max(wait, BRIEFLY)
                until, enough = began + wait, began + patience
            try:
                if not self._rt.is_ready:
                    await self._rt.ready(patience)
                    patience = max(began + patience - self._rt.now(), BRIEFLY)
                self._in_flight, self._over = True, False
                first = await self._rt.call(self._command(wait != 0), patience)
                answer: Answer | None = first if wait == 0 else not_busy(first, self._ask.key)
            except BackendUnavailable:
                self._doubtful = True
                if self._rt.now() >= enough:
                    raise
                answer = None
            if answer is None:  # not in the handler: a later error would carry the first one along
                answer = await self._send(queue=wait != 0, until=until, since=began)
            self._in_flight = False
            if answer.resent:
                self._doubtful = True
            if type(answer.reply) is Granted:
                return self._granted(answer.reply, answer.sent)
            if wait == 0:
                return await self._try_on(answer, enough)
            return await self._in_turn(wait, until, answer)
        except BaseException:
            if not self._over:
                self._abandon()
            raise
        finally:
            if self._queued is not None or self._lookout is not None:
                self._stop_waiting()

    def _abandon(self) -> None:
        """Give up whatever this id may have, in the background."""
        self._rt.keeper.abandon(self._ask.key, self._id, self._burial())

    async def _try_on(self, answer: Answer, until: float) -> Grant:
        """One try was refused: again at once, as long as the store is still clearing away the dead."""
        while self._rt.now() < until:
            if not isinstance(answer.reply, Refused) or answer.reply.recheck_in > 0:
                break
            if answer.reply.reason == "too_large":
                break
            answer = await self._send(queue=False, until=until)
        if isinstance(answer.reply, Granted):
            return self._granted(answer.reply, answer.sent)
        return self._refused(answer.reply)

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
            answer = await self._send(queue=True, until=until)

    # -- waiting ------------------------------------------------------------------------------------

    async def _wait_in_queue(self, answer: Answer, reply: Queued, until: float) -> Grant | None:
        """Wait for a push, or until it is worth asking again; None means: ask again."""
        rt = self._rt
        if self._since is None:
            self._begin_to_wait()
        self._queued, self._ahead = answer, reply.position
        pause = reply.recheck_in + CLOCKS_DIFFER
        if not rt.inbox:
            await rt.listen()
        if rt.inbox != self._inbox:
            return None  # ask again, so that the store learns where to push
        if not self._inbox:
            pause = min(pause, UNHEARD)
        return await self._wait_for_push(answer, reply, rt.now() + pause, until)

    async def _wait_for_push(
        self, answer: Answer, reply: Queued, again_at: float, until: float
    ) -> Grant | None:
        """Wait until `again_at`, and see to the lookout meanwhile."""
        rt, key, place = self._rt, self._ask.key, fingerprint(self._id)
        end = min(again_at, until)
        while True:
            now = rt.now()
            if self._due_at <= now:
                await self._look_out(place)
                now = rt.now()
            signal = rt.signal()
            rt.mail.expect(key, place, signal)
            if await signal.wait(max(min(end, self._due_at) - now, 0.0)):
                push = signal.value
                if isinstance(push, Wakeup) and push.event == "granted":
                    return self._pushed(push, answer.sent, reply.now)
                return None
            if rt.now() >= end or not rt.mail.pause(key, place):
                return None

    async def _wait_outside(self, reply: Refused, until: float) -> None:
        """There was no place to be had: try again when time may have changed that."""
        if reply.reason == "too_large":
            self._over = True
            raise refusal(self._ask, reply)
        if self._since is None:
            self._begin_to_wait()
        if self._due_at <= self._rt.now():
            self._ahead = None
            await self._look_out("")
        left = until - self._rt.now()
        pause = min(max(reply.recheck_in, 0.05), 1.0)
        await self._rt.signal().wait(max(min(pause, left), 0.0))

    def _begin_to_wait(self) -> None:
        self._since = since = self._rt.now()
        self._due_at = first_due(self._rt, self._ask, self._on_wait, since)

    async def _look_out(self, place: str) -> None:
        """Do what is due besides waiting."""
        lookout = self._lookout
        if lookout is None:
            assert self._since is not None
            lookout = self._lookout = Lookout(self._rt, self._ask, self._on_wait, self._since)
        try:
            self._due_at = await lookout.look(place, self._ahead)
        except Deadlock:
            with suppress(DibsError):  # then it is left in the background
                await self._leave_queue()
            raise

    def _begin_anew(self) -> None:
        """Our id ended: its grant went unclaimed while we were paused. Queue again, as another."""
        self._rt.mail.forget(self._ask.key, fingerprint(self._id))
        self._id = new_id()
        self._doubtful = False

    def _stop_waiting(self) -> None:
        """However it ended, nothing is expected, and nobody is told that we wait."""
        if self._queued is not None:
            self._rt.mail.forget(self._ask.key, fingerprint(self._id))
        if self._lookout is not None:
            self._lookout.end()

    # -- ends ---------------------------------------------------------------------------------------

    def _granted(self, reply: Granted, sent: float) -> Grant:
        deadline = sent + trusted(reply.ttl)
        return Grant(self._id, reply.token, reply.slots, sent, deadline, None, self._doubtful)

    def _pushed(self, push: Wakeup, sent: float, store_now: float) -> Grant | None:
        """A pushed grant, if it is proven and stands for a while yet; else None: ask the store.

        The store granted at `granted_at`, and answered our last message, sent at `sent`, at
        `store_now`; so by our clock, which may run slower, it granted no earlier than `sent` plus
        nearly the difference.
        """
        if not self._rt.capabilities.clock or push.granted_at < store_now:
            return None
        if not is_proven(push, self._id):
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
        await self._leave_queue()
        raise await timed_out(self._rt, self._ask.key, wait, self._ahead)
