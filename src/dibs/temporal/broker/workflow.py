"""The broker of one key: a workflow that keeps its book, and grants in strict order.

Plain clients call by the update `apply`, workflows by the signal `apply`; both are answered at once, also if
they have to wait. A plain client that waits blocks in the update `wait`, a workflow gets a signal. The broker
continues as new with all it knows long before its history grows heavy. It ends by itself once it has not
been used for a while.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from dibs.core.codec import encode
from dibs.core.names import fingerprint
from dibs.errors import DibsError
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Notification,
    Refused,
    Renew,
    Reply,
    Status,
)
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import (
    FORMAT,
    BrokerAnswer,
    BrokerCall,
    BrokerInput,
    Packed,
    Waited,
    bytes_of,
    too_new,
    unpack_command,
)
from dibs.temporal.alarm import Alarm
from dibs.temporal.broker.book import BrokerBook, in_brief
from dibs.temporal.broker.details import details
from dibs.temporal.broker.outbox import Outbox
from dibs.temporal.broker.owners import Owner, OwnerWatch, inbox_of, owner_of

AN_ANSWER = 400_000
"""Bytes of replies in one answer after which the rest is cut short. A message of Temporal's has 2 MB."""

CARRIED = 300_000
"""Bytes of unsent signals that a run can leave to the next, beside its book."""

BLOCKED = 5
"""Plain clients that wait for notifications at a time. A server has ten updates of a run in flight, and drops
its work on them when it is asked for more.
"""

KEPT = 64
"""Notifications that are kept of one inbox, while its client does not wait."""

KEPT_INBOXES = 64
"""Inboxes of which notifications are kept."""

HANDED_ON = 8
"""Notifications of one inbox that the next run gets."""

LEAST_TURN = 0.04
"""The shortest hold, in seconds, that clients far back in the queue reckon with."""

LONGEST_PAUSE = 5.0
"""Seconds after which they ask again at the latest."""


@workflow.defn(name=ids.BROKER)
class DibsBroker:
    """Keeps one key's book."""

    EVENTS = 4_000
    """Events of its history after which the run ends and the next one continues."""
    CALLS = 1_500
    """Updates after which the run ends: a server takes 2,000 per run."""
    IDLE = 300.0
    """Seconds without a holder, a waiter or a call, after which the broker ends."""
    PORTION = 200
    """Calls applied in one workflow task. A worker takes a task of two seconds for one that hangs."""

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        state = (given.state or {}) if given.format <= FORMAT else {}
        self._given = given
        self._now: float = state.get("now", 0.0)
        self._used_at = workflow.time()
        self._cancelled: bool = state.get("cancelled", False)
        self._calls = 0
        self._leaving = False
        self._gathered: deque[tuple[RawValue | BrokerCall, asyncio.Future[BrokerAnswer] | None]]
        self._gathered = deque()
        """Calls to be applied, in the order of arrival. The future is of an update."""
        self._missed: dict[str, list[str]] = {}
        """Inboxes of workflows that have closed, and the grants that never reached them."""
        self._waits: dict[str, int] = {}
        """The number of the last `wait` of each inbox: only that one blocks."""
        self._book = BrokerBook(bytes_of(given.key), state.get("book"))
        self._front = self._book.front(BLOCKED)
        self._outbox = Outbox(given.key, self._landed, state.get("outbox"))
        self._notifications: dict[str, list[Packed]] = state.get("notifications", {})
        """By inbox of a plain client, what it has not received."""
        self._watch = OwnerWatch(self._closed, state.get("watch", 0.0))
        self._alarm = Alarm()
        """Rung when there is something to do."""

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        """Keep the book until nobody needs it."""
        newer = too_new("this broker's state", given.format, "its worker", FORMAT)
        if newer:  # This fails the task, not the workflow: what is held stays so until a newer worker comes.
            raise RuntimeError(newer)
        while True:
            self._alarm.rung = False
            self._work_safely()
            if self._is_over():
                return
            await self._pause()
            if self._leaving and self._is_at_rest():
                workflow.continue_as_new(self._next_input())

    async def _pause(self) -> None:
        """Wait until there is something to do.

        A broker that is cancelled ends when nothing is held and nobody waits: before, locks would be lost.
        """
        try:
            if self._gathered:  # a timer ends this task, and its end begins the next one
                await workflow.sleep(0.001, summary="before the next portion of a burst of calls")
            else:
                self._set_alarm()
                await workflow.wait_condition(
                    lambda: (
                        self._alarm.rung
                        or (self._leaving and self._is_at_rest())
                        or (self._cancelled and self._is_over())
                    )
                )
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: True)  # does not return to a run that is evicted
            workflow.logger.warning("Cancelled: it ends when nothing is held and nobody waits")
            self._cancelled = True

    # -- messages -----------------------------------------------------------------------------------

    @workflow.update(name=ids.APPLY)
    async def apply(self, call: BrokerCall) -> BrokerAnswer:
        """Apply a batch of commands. The answer comes at once, also if a command has to wait."""
        self._calls += 1
        answer = asyncio.get_running_loop().create_future()
        self._gather(call, answer)
        found: BrokerAnswer = await answer
        return found

    @apply.validator
    def _refuse_newer(self, call: BrokerCall) -> None:
        newer = _newer(call)
        if newer:
            raise ApplicationError(newer, type="IncompatibleVersion", non_retryable=True)

    @workflow.signal(name=ids.APPLY)
    def apply_for_workflow(self, call: RawValue) -> None:
        """Apply a `BrokerCall` of a workflow, which cannot update. The answer is sent by a signal."""
        self._gather(call, None)

    def _gather(
        self, call: RawValue | BrokerCall, answer: asyncio.Future[BrokerAnswer] | None
    ) -> None:
        self._gathered.append((call, answer))
        self._alarm.ring()

    @workflow.update(name=ids.WAIT)
    async def wait(self, inbox: str) -> Waited:
        """Block until an inbox has a notification.

        Returns early before the run ends, and if `BLOCKED` other inboxes are in front: those of the first
        waiters, and then of holders. So calls always get through. It tells then when to come back.
        """
        self._calls += 1
        mine = self._waits[inbox] = self._calls

        def is_over() -> bool:
            return (
                self._leaving
                or inbox in self._notifications
                or inbox not in self._front
                or self._waits.get(inbox) != mine
            )

        if not is_over():
            await workflow.wait_condition(is_over)
        if self._waits.get(inbox) != mine:
            return Waited()
        del self._waits[inbox]
        ahead = self._book.ahead(inbox, BLOCKED)
        return Waited(
            self._notifications.pop(inbox, []), None if ahead is None else self._pause_of(ahead)
        )

    def _pause_of(self, ahead: int) -> float:
        """Seconds until a client far back asks again: half of what those ahead should take.

        The last grant, whose time is its token, tells how long they take at least.
        """
        turn = max(workflow.time() - self._book.book.last / 1e6, LEAST_TURN)
        return min(ahead * turn / 2, LONGEST_PAUSE)

    @workflow.query(name=ids.STATUS)
    def status(self) -> Packed:
        """The key's status. A query sees the last task's time, so this reads the worker's clock."""
        with workflow.unsafe.sandbox_unrestricted():
            now = max(self._now, time.time())
        return encode(self._book.status(now, int(now * 1e6)))

    # -- calls --------------------------------------------------------------------------------------

    def _apply_next(self) -> None:
        call, answer = self._gathered.popleft()
        if answer is not None:
            assert isinstance(call, BrokerCall)
            found = self._answer(call, "", [])
            if not answer.done():
                answer.set_result(found)
            return
        try:
            assert isinstance(call, RawValue)
            read = workflow.payload_converter().from_payload(call.payload, BrokerCall)
        except Exception as error:  # noqa: BLE001 - whatever a converter raises, a broker goes on
            workflow.logger.warning("A signal that is no call of ours: %s", error)
            return
        inbox, granted = inbox_of(read.workflow_id, read.run_id), list[str]()
        self._outbox.put(inbox, self._answer(read, inbox, granted), granted)

    def _answer(self, call: BrokerCall, inbox: str, granted: list[str]) -> BrokerAnswer:
        """Apply a call. Appends the ids to `granted` whose owner learns of the grant by the answer."""
        self._used_at = workflow.time()
        commands = [self._unpacked(packed, call) for packed in call.commands]
        lease_ids: list[str] = [getattr(each, "id", "") for each in commands]
        leases = {fingerprint(lease_id) for lease_id in lease_ids if lease_id}
        replies: list[Packed] = []
        size = 0
        for command in commands:
            reply = self._reply(command, call, inbox, granted)
            if isinstance(reply, Status) and inbox:
                reply = in_brief(reply, leases)
            replies.append(encode(_cut_short(reply) if size > AN_ANSWER else reply))
            size += len(json.dumps(replies[-1])) if len(commands) > 1 else 0
        return BrokerAnswer(replies, call.number, self._time()[0])

    def _unpacked(self, packed: Any, call: BrokerCall) -> Command | Failed:
        newer = _newer(call)
        if newer:
            return Failed("invalid", newer)
        try:
            return unpack_command(packed, self._book.key)
        except ValueError as error:
            return Failed("invalid", str(error))

    def _reply(
        self, command: Command | Failed, call: BrokerCall, inbox: str, granted: list[str]
    ) -> Reply:
        """Apply a command. Raises no error of ours: it would end the workflow, with all its locks."""
        if isinstance(command, Failed):
            return command
        if isinstance(command, Acquire | Renew) and inbox and not command.inbox:
            command = replace(command, inbox=inbox)
        known = self._book.book.get(getattr(command, "id", "")) is not None
        try:
            reply, notifications = self._book.apply(command, *self._time())
        except DibsError as error:
            return Failed("invalid", str(error))
        if isinstance(command, Acquire) and isinstance(reply, Granted) and not known:
            granted.append(command.id)
        if call.fast and owner_of(inbox):
            self._book.mark_fast(command, (call.workflow_id, call.run_id))
        self._notify(notifications)
        return reply

    def _time(self) -> tuple[float, int]:
        """The time in seconds, which never goes back, and the stamp of tokens in microseconds."""
        self._now = max(self._now, workflow.time())
        return self._now, int(self._now * 1e6)

    # -- the broker's own work ----------------------------------------------------------------------

    def _work_safely(self) -> None:
        """Turn an error of ours, which would end the workflow, into one that only fails its task."""
        try:
            self._work()
        except DibsError as error:
            raise RuntimeError(f"the broker can't go on: {error}") from error

    def _work(self) -> None:
        for _ in range(min(len(self._gathered), self.PORTION)):
            self._apply_next()
        missed, self._missed = self._missed, {}
        if missed:
            self._notify(self._book.gone(missed, *self._time()))
        self._let_time_act()
        runs = self._book.fast_owners() if self._book.book.waiting else []
        self._watch.work(runs, self._book.head_owner(), workflow.time())
        self._front = self._book.front(BLOCKED)
        # before it leaves, calls are applied and answers sent, until all fits into a message for the next run
        self._leaving = not self._gathered and self._is_outgrown() and self._outbox.size() < CARRIED
        if not self._leaving:
            self._outbox.send()
        workflow.set_current_details(details(self._book.key, self._book.book))

    def _let_time_act(self) -> None:
        self._notify(self._book.settle(*self._time()))

    def _notify(self, notifications: Sequence[Notification]) -> None:
        """Queue the notifications for their receivers.

        A workflow's grant is claimed before its signal is sent, and taken back if that run has closed.
        """
        granted = self._book.ids_granted(notifications)
        by_lease: dict[str, list[str]] = {}
        for inbox, entry_ids in granted.items():
            if owner_of(inbox):
                notifications = self._book.claimed(entry_ids, notifications, *self._time())
                by_lease |= {fingerprint(each): [each] for each in entry_ids}
        for each in notifications:
            if not owner_of(each.inbox):
                self._keep(each.inbox, encode(each))
            elif each.event != "head":  # the broker itself looks after a workflow that is first
                self._outbox.put(each.inbox, encode(each), by_lease.get(each.lease, ()))

    def _keep(self, inbox: str, packed: Packed) -> None:
        """Keep a notification until a plain client's `wait` takes it."""
        if inbox:
            self._notifications[inbox] = [*self._notifications.pop(inbox, []), packed][-KEPT:]
        if len(self._notifications) > KEPT_INBOXES:
            del self._notifications[next(iter(self._notifications))]

    def _landed(self, inbox: str, granted: Sequence[str], there: bool) -> None:
        if not there:
            self._missed.setdefault(inbox, []).extend(granted)
        self._alarm.ring()

    def _closed(self, runs: Sequence[Owner], waiters: Sequence[Owner]) -> None:
        """Release the leases of closed runs, and the queue positions of closed waiters."""
        self._notify(self._book.closed(runs, *self._time()))
        for waiter in waiters:
            self._missed.setdefault(inbox_of(*waiter), [])
        self._alarm.ring()

    def _set_alarm(self) -> None:
        times = [at for at in (self._next_change(), self._watch.due_at()) if at is not None]
        if times:
            self._alarm.set(min(times), "until time alone changes something")
        else:
            idle_at, now = self._idle_at(), workflow.time()
            # not over then: something in the book has no end
            self._alarm.set(idle_at if idle_at > now else now + self.IDLE, "until it is not needed")

    def _next_change(self) -> float | None:
        return self._book.next_change(self._time()[0])

    def _idle_at(self) -> float:
        last = self._book.last_expiry(self._time()[0])
        return max(self._used_at, last) + (0.0 if self._cancelled else self.IDLE)

    def _is_over(self) -> bool:
        return (
            workflow.time() >= self._idle_at()
            and self._book.book.idle
            and self._outbox.is_empty
            and not self._gathered
            and workflow.all_handlers_finished()
        )

    # -- the next run -------------------------------------------------------------------------------

    def _is_outgrown(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() > self.EVENTS
            or self._calls > self.CALLS
        )

    def _is_at_rest(self) -> bool:
        """Whether nothing is under way whose end only this run would learn."""
        return (
            not self._gathered and not self._outbox.is_sending and workflow.all_handlers_finished()
        )

    def _next_input(self) -> BrokerInput:
        missed, self._missed = self._missed, {}
        if missed:
            self._notify(self._book.gone(missed, *self._time()))
        state = {
            "book": self._book.dump(),
            "outbox": self._outbox.dump(),
            "notifications": {
                each: kept[-HANDED_ON:] for each, kept in self._notifications.items()
            },
            "watch": self._watch.dump(),
            "now": self._now,
            "cancelled": self._cancelled,
        }
        return BrokerInput(self._given.key, state)


def _newer(call: BrokerCall) -> str | None:
    """Why a call of a later release is refused. None if it is not."""
    return too_new("the call", call.format, "the worker of this broker", FORMAT)


def _cut_short(reply: Reply) -> Reply:
    """The reply for an answer that has little room left."""
    if isinstance(reply, Refused):
        return replace(reply, holders=())
    if isinstance(reply, Status):
        return Failed("busy", "too much is asked of its broker at once: ask for less at a time")
    return reply
