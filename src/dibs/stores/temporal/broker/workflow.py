"""The broker of one key: a workflow that keeps its book, and grants in strict order.

Plain clients call by the update `apply`, workflows by the signal `apply`, and none of these waits for a
turn: who must wait is told later, by a push. The broker continues as new with all it knows long before
its history grows heavy, and ends by itself once nothing has been asked of it for a while.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from dibs.core.book import Hold, MemoryBook, QueueEntry
from dibs.core.codec import encode
from dibs.core.names import printable, shown
from dibs.errors import DibsError
from dibs.model import MANY
from dibs.stores.temporal.broker.backlog import Backlog, Letter, call_in
from dibs.stores.temporal.broker.clerk import Clerk, newer_call
from dibs.stores.temporal.broker.clock import BrokerClock
from dibs.stores.temporal.broker.desk import Desk
from dibs.stores.temporal.broker.parts import outgrown, size_of
from dibs.stores.temporal.broker.post import Post, Telling
from dibs.stores.temporal.broker.snapshot import MESSAGE
from dibs.stores.temporal.broker.watch import Watch
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.owners import Owner, inbox_of
from dibs.stores.temporal.protocol.wire import (
    FORMAT,
    WITH_BACKLOG,
    BrokerAnswer,
    BrokerCall,
    BrokerInput,
    Packed,
    bytes_of,
    too_new,
)


@workflow.defn(name=ids.BROKER)
class DibsBroker:
    """Keeps one key's book."""

    EVENTS = 4_000
    """A history longer than this is left behind."""
    CALLS = 1_500
    """A server takes 2,000 updates of one run."""
    IDLE = 300.0
    """It ends after so many seconds in which nothing was held, awaited or asked."""

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        state = (given.state or {}) if given.format <= WITH_BACKLOG else {}
        self._given = given
        self._asked_at = workflow.time()
        self._calls = 0
        self._cancelled: bool = state.get("cancelled", False)
        self._stirred = True
        self._clock = BrokerClock(state.get("now", 0.0), state.get("by_hand"))
        self._desk = Desk(bytes_of(given.key), state.get("desk"))
        self._telling = Telling(given.key, self._desk, self._clock, self._stir, state.get("post"))
        self._clerk = Clerk(self._desk, self._clock, self._telling, by_hand=given.by_hand)
        self._backlog = Backlog(self._apply_letter, self._stir, state.get("backlog"))
        self._alarm = Alarm(self._stir)
        self._leaving = Leaving(self._desk, self._telling.post, self._backlog)
        self._watch = Watch(self._telling.closed, state.get("watch", 0.0))

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        """Keep the book until nobody needs it."""
        newer = too_new("this broker's state", given.format, "its worker", WITH_BACKLOG)
        if newer:  # This fails the task, not the workflow: what is held stays so until a newer worker comes.
            raise RuntimeError(newer)
        while True:
            self._stirred = False
            self._work_safely()
            if self._finished():
                return
            if self._backlog:
                self._leave_if_it_can()  # else there is nobody to wake it
            self._set_alarm()
            await self._stir_or_cancel()
            self._leave_if_it_can()

    def _stir(self) -> None:
        self._stirred = True

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
    async def apply(self, call: BrokerCall) -> BrokerAnswer:
        """Apply a batch of commands; who has to wait is pushed the news."""
        async with self._backlog.turn():
            return self._apply(call, "", [])

    @apply.validator
    def _refuse_newer(self, call: BrokerCall) -> None:
        newer = newer_call(call)
        if newer:
            raise ApplicationError(newer, type="IncompatibleVersion", non_retryable=True)

    @workflow.signal(name=ids.APPLY)
    def apply_for_workflow(self, letter: RawValue) -> None:
        """The same for workflows, which can't update: a `BrokerCall`, whose answer comes by a signal."""
        if not self._backlog.keeps(letter):
            self._apply_letter(letter)

    @workflow.query(name=ids.STATUS)
    def status(self) -> Packed:
        """Who holds and who waits."""
        return encode(self._clerk.status())

    def _apply_letter(self, letter: Letter) -> None:
        try:
            call = call_in(letter)
        except ValueError as error:
            workflow.logger.warning("A signal that is no call of ours: %s", error)
            return
        inbox = inbox_of(call.workflow_id, call.run_id)
        granted: list[str] = []
        answer = self._apply(call, inbox, granted)
        self._telling.answer(inbox, answer, granted)

    def _apply(self, call: BrokerCall, inbox: str, granted: list[str]) -> BrokerAnswer:
        self._calls += 1
        self._asked_at = workflow.time()
        answer = self._clerk.answer(call, inbox, granted)
        self._stir()
        return answer

    # -- the broker's own work ----------------------------------------------------------------------

    def _work_safely(self) -> None:
        """An error of ours would end the workflow; this one fails its task only, until a release mends it."""
        try:
            self._work()
        except DibsError as error:
            raise RuntimeError(f"the broker can't go on: {error}") from error

    def _work(self) -> None:
        now = workflow.time()
        self._telling.take_back()
        if not self._clock.by_hand:
            self._telling.push(self._desk.settle(*self._clock.read()))
        self._watch.work(self._watched(), self._desk.head_owner(), now)
        pauses = self._leaving.pauses(self._leaves())
        if not pauses:
            self._telling.post.send()
        self._backlog.work(pause=pauses)
        workflow.set_current_details(details(self._desk.key, self._desk.book))

    def _watched(self) -> list[Owner]:
        """The runs whose end would free something."""
        return self._desk.fast_owners() if self._desk.book.waiting else []

    def _set_alarm(self) -> None:
        change = None if self._clock.by_hand else self._desk.next_change(self._clock.now())
        dues = (change, self._watch.due(), self._leaving.due())
        times = [at for at in dues if at is not None]
        if times:
            self._alarm.set(min(times), "until time alone changes something")
        else:
            idle_at, now = self._idle_at(), workflow.time()
            # not over then: something in the book has no end
            self._alarm.set(idle_at if idle_at > now else now + self.IDLE, "until it is not needed")

    def _idle_at(self) -> float:
        last = 0.0 if self._clock.by_hand else self._desk.last_expiry(self._clock.now())
        return max(self._asked_at, last) + (0.0 if self._cancelled else self.IDLE)

    def _finished(self) -> bool:
        return (
            workflow.time() >= self._idle_at()
            and (bool(self._clock.by_hand) or self._desk.book.idle)
            and self._telling.post.empty
            and not self._backlog
            and workflow.all_handlers_finished()
        )

    # -- the next run -------------------------------------------------------------------------------

    def _leave_if_it_can(self) -> None:
        if self._leaves() and self._at_rest():
            workflow.continue_as_new(self._next_input())

    def _leaves(self) -> bool:
        return self._leaving.is_due(self.EVENTS, self._calls, self.CALLS)

    def _at_rest(self) -> bool:
        """Nothing is under way whose end only this run would hear of."""
        return (
            not self._telling.post.under_way
            and self._backlog.at_rest
            and workflow.all_handlers_finished()
        )

    def _next_input(self) -> BrokerInput:
        self._telling.take_back()
        backlog = self._backlog.dump()
        state = {
            "desk": self._desk.dump(),
            "post": self._telling.post.dump(),
            "watch": self._watch.dump(),
            "now": self._clock.now(),
            "by_hand": self._clock.by_hand,
            "cancelled": self._cancelled,
        }
        return BrokerInput(
            self._given.key,
            {**state, "backlog": backlog} if backlog else state,
            by_hand=self._given.by_hand,
            format=WITH_BACKLOG if backlog else FORMAT,
        )


_SOONEST = 0.02
"""What is due at once may wait so long for what is due with it."""
_LATEST = 86_400.0
"""It looks once a day, so that no ttl is too long for a timer."""


class Alarm:
    """Rings at the latest when it was last asked to. One that rings too early is set again then.

    Nearly every call moves the next due time on, and to move a timer is two events each time.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def set(self, at: float, why: str) -> None:
        """Ring at that time or before. `why` is seen in Temporal's UI."""
        if self._at is not None and self._at <= at:
            return
        if self._task is not None:
            self._task.cancel()
        self._at = at
        wait = timedelta(seconds=min(max(at - workflow.time(), _SOONEST), _LATEST))
        self._task = asyncio.create_task(self._sleep(wait, why))

    async def _sleep(self, wait: timedelta, why: str) -> None:
        await workflow.sleep(wait, summary=why)
        self._at = self._task = None
        self._ring()


_SHOWN = 10


def details(key: bytes, book: MemoryBook) -> str:
    """Some lines of Markdown."""
    lines = [f"**{shown(key)}**: {_taken(book)}, {book.waiting} waiting", ""]
    holds = sorted(book.first_to_end(_SHOWN), key=lambda hold: hold.token)
    lines += [_holder(hold) for hold in holds]
    lines += _more(book.holding, "hold")
    lines += [_waiter(place) for place in islice(book.queue(), _SHOWN)]
    lines += _more(book.waiting, "wait")
    return "\n".join(lines)


def _taken(book: MemoryBook) -> str:
    if book.capacity >= MANY:
        return f"{book.used} units taken"
    return f"{book.used} of {book.capacity} taken"


def _holder(hold: Hold) -> str:
    slots = f", slot {', '.join(map(str, hold.slots))}" if hold.slots else ""
    if hold.state == "retained":
        return f"- kept by {printable(hold.owner) or 'nobody'}{slots}"
    state = "" if hold.state == "held" else f" ({hold.state})"
    return (
        f"- held{state} by {printable(hold.owner)} since {_time(hold.since)}, "
        f"token {hold.token}{slots}{_note(hold.note)}"
    )


def _waiter(place: QueueEntry) -> str:
    units = "" if place.units == 1 else f" for {place.units} units"
    return f"- {printable(place.owner)} waits{units} since {_time(place.since)}{_note(place.note)}"


def _note(note: str) -> str:
    return f": {printable(note)}" if note else ""


def _time(stamp: int) -> str:
    try:
        return datetime.fromtimestamp(stamp / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):  # of a clock that is far off
        return "?"


def _more(many: int, what: str) -> list[str]:
    return [f"- {many - _SHOWN} more {what}"] if many > _SHOWN else []


class Leaving:
    """A run that is to end sends nothing, since it must hear what becomes of it. But not for long.

    It can't end amid a call, and where calls overlap there may always be one.
    """

    LONGEST = 2.0
    """So long at a time those wait who are to be told something."""

    def __init__(self, desk: Desk, post: Post, backlog: Backlog) -> None:
        self._desk = desk
        self._post = post
        self._backlog = backlog
        self._until = 0.0
        """When it gives up for this time; 0 while it keeps nobody waiting."""

    def is_due(self, events: int, calls: int, most_calls: int) -> bool:
        """It is time for the next run, and what this one knows fits into a message for it."""
        if not outgrown(events, calls, most_calls):
            return False
        # else it goes on as before: letters are applied and answers sent, until it fits
        more = self._backlog.size + self._post.size()
        if not self._fits(more):
            return False
        more += size_of(self._desk.owners())
        return self._fits(more)

    def _fits(self, more: int) -> bool:
        room = self._desk.room
        return room.size + more < MESSAGE or room.measured() + more < MESSAGE

    def pauses(self, leaves: bool) -> bool:
        """Whether nothing more is to be begun, as the run is about to end."""
        if not leaves:
            self._until = 0.0
        elif self._until:
            if workflow.time() >= self._until:
                self._until = 0.0
                return False
        elif self._backlog or not self._post.empty:
            self._until = workflow.time() + self.LONGEST
        return leaves

    def due(self) -> float | None:
        """When it gives up for this time."""
        return self._until or None
