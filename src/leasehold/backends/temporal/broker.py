"""The broker of one key: a workflow that keeps its book, and grants in strict order.

Plain clients call by the update `apply`, workflows by the signal `apply`, and none of these waits for a
turn: who must wait is told later, by a push. The broker continues as new with all it knows long before
its history grows heavy, and ends by itself once nothing has been asked of it for a while.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.broker_alarm import Alarm
from leasehold.backends.temporal.broker_clock import BrokerClock
from leasehold.backends.temporal.broker_desk import Desk, Owner, inbox_of, owner_of
from leasehold.backends.temporal.broker_growth import outgrown
from leasehold.backends.temporal.broker_post import Letter, Post
from leasehold.backends.temporal.broker_view import details
from leasehold.backends.temporal.broker_watch import Watch
from leasehold.backends.temporal.claims import Claims
from leasehold.backends.temporal.claims_slots import Slots, shareable
from leasehold.backends.temporal.wire import (
    FORMAT,
    Answer,
    BrokerInput,
    Call,
    Packed,
    bytes_of,
    pack_reply,
    pack_wakeup,
    unpack_command,
)
from leasehold.core.names import fingerprint
from leasehold.errors import LeaseholdError
from leasehold.model import Acquire, Command, Failed, Granted, Refused, Reply, Revoke, Wakeup


@workflow.defn(name=ids.BROKER)
class LeaseholdBroker:
    """Keeps one key's book."""

    EVENTS = 4_000
    """A history longer than this is left behind."""
    CALLS = 1_500
    """A server takes 2,000 updates of one run."""
    IDLE = 300.0
    """It ends after so many seconds in which nothing was held, awaited or asked."""

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        state = (given.state or {}) if given.format <= FORMAT else {}
        self._given = given
        self._key = bytes_of(given.key)
        self._clock = BrokerClock(state.get("now", 0.0), state.get("by_hand"))
        self._asked_at = workflow.time()
        self._calls = 0
        self._cancelled: bool = state.get("cancelled", False)
        self._stirred = True
        self._desk = Desk(self._key, state.get("desk"))
        self._post = Post(given.key, self._landed, state.get("post"))
        self._alarm = Alarm(self._stir)
        self._watch = Watch(self._have_closed)
        self._slots: Slots | None = None
        self._claims: Claims | None = None
        if given.share:
            self._share(state.get("claims"))

    def _share(self, state: Packed | None) -> None:
        """Hold the permits of the slots that are granted from now on, and of those that were."""
        if self._claims is None and shareable(self._key):
            self._slots = Slots(self._desk)
            self._claims = Claims(self._slots, self._clock.now, self._lose_slot, self._stir, state)
            if state is None:
                self._claims.begin()

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        """Keep the book until nobody needs it."""
        if given.format > FORMAT:
            # This fails the task, not the workflow: what is held stays held until a newer worker comes.
            raise RuntimeError(
                f"this broker's state is of format {given.format}, and this release of Leasehold "
                f"knows {FORMAT}: run workers of the newer release"
            )
        while True:
            self._stirred = False
            self._work_safely()
            if self._finished():
                return
            self._set_alarm()
            await self._stir_or_cancel()
            if self._outgrown() and self._at_rest():
                workflow.continue_as_new(self._next_input())

    async def _stir_or_cancel(self) -> None:
        """A cancelled broker ends when nothing is held and nobody waits: before, locks would be lost."""
        try:
            await workflow.wait_condition(lambda: self._stirred)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: True)  # does not return to a run that is evicted
            workflow.logger.warning("Cancelled: it ends when nothing is held and nobody waits")
            self._cancelled = True

    # -- what is asked ------------------------------------------------------------------------------

    @workflow.update(name=ids.APPLY)
    async def apply(self, call: Call) -> Answer:
        """Apply a batch of commands; who has to wait is pushed the news."""
        return await self._apply(call, "", [])

    @apply.validator
    def _refuse_newer(self, call: Call) -> None:
        if call.format > FORMAT:
            raise ApplicationError(_newer(call), type="IncompatibleVersion", non_retryable=True)

    @workflow.signal(name=ids.APPLY)
    async def apply_for_workflow(self, call: Call) -> None:
        """The same for workflows, which can't update: the answer comes by a signal."""
        inbox = inbox_of(call.workflow_id, call.run_id)
        granted: list[str] = []
        answer = await self._apply(call, inbox, granted)
        letter = self._post.to(inbox)
        letter.answers.append(answer)
        letter.granted += granted

    @workflow.query(name=ids.STATUS)
    def status(self) -> Packed:
        """Who holds and who waits."""
        now, stamp = self._clock.of_query()
        return pack_reply(self._seen(self._desk.status(now, stamp), now, stamp))

    async def _apply(self, call: Call, inbox: str, granted: list[str]) -> Answer:
        """At once, unless permits have to be taken first: then in order."""
        self._calls += 1
        self._asked_at = workflow.time()
        if call.share:
            self._share(None)
        if self._claims is None:
            return await self._answer(call, inbox, granted)
        async with self._claims.order:
            return await self._answer(call, inbox, granted)

    async def _answer(self, call: Call, inbox: str, granted: list[str]) -> Answer:
        replies = [await self._reply(each, call, inbox, granted) for each in call.commands]
        self._stir()
        return Answer([pack_reply(reply) for reply in replies], call.number, self._clock.now())

    async def _reply(self, packed: Packed, call: Call, inbox: str, granted: list[str]) -> Reply:
        """No error of ours may get out, as one may end a workflow: all that is held would be lost."""
        try:
            await self._make_room(packed, call)
            return self._reply_now(packed, call, inbox, granted)
        except LeaseholdError as error:
            return Failed("invalid", str(error))

    def _reply_now(self, packed: Packed, call: Call, inbox: str, granted: list[str]) -> Reply:
        """`granted` gets the ids whose owners first hear of their grant by this."""
        self._heed_time(call)
        now, stamp = self._clock.read()
        command = self._command(packed, call)
        if isinstance(command, Failed):
            return command
        if isinstance(command, Acquire) and inbox and not command.inbox:
            command = replace(command, inbox=inbox)
        known = self._desk.book.get(getattr(command, "id", "")) is not None
        reply, wakeups = self._applied(command, now, stamp)
        if isinstance(command, Acquire) and isinstance(reply, Granted) and not known:
            granted.append(command.id)
        if call.fast and owner_of(inbox):
            self._desk.mark_fast(command, (call.workflow_id, call.run_id))
        self._push(wakeups)
        return self._seen(reply, now, stamp)

    def _applied(self, command: Command, now: float, stamp: int) -> tuple[Reply, list[Wakeup]]:
        reply, wakeups = self._desk.apply(command, now, stamp)
        if self._slots and self._slots.open_surplus() and isinstance(reply, Refused):
            reply, more = self._desk.apply(command, now, stamp)  # only those were in its way, maybe
            wakeups += more
        return reply, wakeups

    def _heed_time(self, call: Call) -> None:
        if self._given.by_hand:
            self._clock.by_hand = call.at

    def _command(self, packed: Packed, call: Call) -> Command | Failed:
        if call.format > FORMAT:
            return Failed("invalid", _newer(call))
        if call.at is not None and not self._given.by_hand:
            return Failed("invalid", _OWN_TIME)
        try:
            command = unpack_command(packed, self._key)
        except ValueError as error:
            return Failed("invalid", str(error))
        flaw = self._desk.flaw(command) or (self._slots and self._slots.flaw(command))
        return Failed("invalid", flaw) if flaw else command

    async def _make_room(self, packed: Packed, call: Call) -> None:
        if self._claims is None:
            return
        self._heed_time(call)
        command = self._command(packed, call)
        if not isinstance(command, Failed):
            await self._claims.make_room(command)

    def _seen(self, reply: Reply, now: float, stamp: int) -> Reply:
        return self._slots.seen(reply, now, stamp) if self._slots else reply

    # -- what is told -------------------------------------------------------------------------------

    def _push(self, wakeups: list[Wakeup]) -> None:
        granted = self._desk.ids_granted(wakeups)
        now, stamp = self._clock.read()
        for inbox, entry_ids in granted.items():
            if owner_of(inbox):
                wakeups = self._desk.claimed(entry_ids, wakeups, now, stamp)
                self._post.to(inbox).granted += entry_ids
        for wakeup in wakeups:
            if wakeup.inbox and not _needless(wakeup):
                self._post.to(wakeup.inbox).wakeups.append(pack_wakeup(wakeup))

    def _landed(self, inbox: str, letter: Letter, there: bool) -> None:
        """Nobody holds what was granted to a workflow that had closed by then.

        A mailbox that isn't there proves nothing: its client may ask without one.
        """
        if owner_of(inbox) and not there:
            self._push(self._desk.gone(inbox, letter.granted, *self._clock.read()))
        self._stir()

    def _have_closed(self, runs: Sequence[Owner], waiters: Sequence[Owner]) -> None:
        if self._claims is not None:
            self._claims.lose_runs(runs)
        self._push(self._desk.closed(runs, *self._clock.read()))
        for waiter in waiters:
            self._push(self._desk.gone(inbox_of(*waiter), [], *self._clock.read()))
        self._stir()

    def _lose_slot(self, slot: int) -> None:
        """Somebody ended the permit of a slot: whoever was granted it must stop."""
        assert self._slots is not None
        why = f"its permit {self._slots.permit_id(slot)} was ended by somebody else"
        for hold in self._slots.holders_of(slot):
            revoke = Revoke(self._key, fingerprint(hold.id), why, now=True)
            self._push(self._desk.apply(revoke, *self._clock.read())[1])

    # -- the broker's own work ----------------------------------------------------------------------

    def _stir(self) -> None:
        self._stirred = True

    def _work_safely(self) -> None:
        """An error of ours would end the workflow; this one fails its task only, until a release mends it."""
        try:
            self._work()
        except LeaseholdError as error:
            raise RuntimeError(f"the broker can't go on: {error}") from error

    def _work(self) -> None:
        now = workflow.time()
        waiting = self._desk.book.waiting > 0
        if not self._clock.by_hand:
            self._push(self._desk.settle(*self._clock.read()))
        if self._claims is not None:
            self._claims.work(now, waiting=waiting)
        self._watch.work(self._watched(), self._desk.head_owner(), now)
        if not self._outgrown():
            self._post.send()
        workflow.set_current_details(details(self._key, self._desk.book))

    def _watched(self) -> list[Owner]:
        """The runs whose end would free something, or take something away."""
        runs = self._desk.fast_owners() if self._desk.book.waiting else []
        return [*runs, *(self._claims.unwatched() if self._claims is not None else [])]

    def _set_alarm(self) -> None:
        own = [self._watch.due(), self._claims.due() if self._claims is not None else None]
        change = None if self._clock.by_hand else self._desk.next_change(self._clock.now())
        times = [at for at in (change, *own) if at is not None]
        if times:
            self._alarm.set(min(times), "until time alone changes something")
        else:
            idle_at, now = self._idle_at(), workflow.time()
            # not over then: something in the book has no end
            self._alarm.set(idle_at if idle_at > now else now + self.IDLE, "until it is not needed")

    def _idle_at(self) -> float:
        last = 0.0 if self._clock.by_hand else self._desk.last_expiry(self._clock.now())
        return max(self._asked_at, last) + (0.0 if self._cancelled else self.IDLE)

    # -- the next run -------------------------------------------------------------------------------

    def _outgrown(self) -> bool:
        return outgrown(self.EVENTS, self._calls, self.CALLS)

    def _at_rest(self) -> bool:
        """Nothing is under way whose end only this run would hear of."""
        return (
            not self._post.under_way
            and (self._claims is None or self._claims.at_rest)
            and workflow.all_handlers_finished()
        )

    def _finished(self) -> bool:
        return (
            workflow.time() >= self._idle_at()
            and (bool(self._clock.by_hand) or self._nothing_in_book())
            and self._post.empty
            and (self._claims is None or self._claims.empty)
            and workflow.all_handlers_finished()
        )

    def _nothing_in_book(self) -> bool:
        return self._slots.nothing_else if self._slots else self._desk.book.idle

    def _next_input(self) -> BrokerInput:
        state = {
            "desk": self._desk.dump(),
            "post": self._post.dump(),
            "claims": self._claims.dump() if self._claims is not None else None,
            "now": self._clock.now(),
            "by_hand": self._clock.by_hand,
            "cancelled": self._cancelled,
        }
        return BrokerInput(
            self._given.key, self._claims is not None, state, by_hand=self._given.by_hand
        )


_OWN_TIME = (
    "the call says what time it is, and this broker was not started with a clock of a test's own: "
    "it goes by the server's time"
)


def _needless(wakeup: Wakeup) -> bool:
    """A workflow at the head need not look after the time: the broker does."""
    return wakeup.event == "head" and owner_of(wakeup.inbox) is not None


def _newer(call: Call) -> str:
    return (
        f"the call is of format {call.format}, and the worker that serves this broker knows {FORMAT}: "
        "upgrade the workers first"
    )
