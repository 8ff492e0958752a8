"""A workflow run's calls to brokers, and the signals that bring the answers and notifications."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from temporalio import workflow
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from dibs.core.codec import decode_notification, decode_reply, encode
from dibs.core.names import shown
from dibs.model import Command, Notification, Reply
from dibs.stores.temporal import ids, wire
from dibs.temporal.alarm import Alarm
from dibs.temporal.sdk import GONE

STARTS = 10
"""Starts of a broker after which a call fails: a broker that ends that often will do so again."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker of a key, found by its workflow ID alone, since it continues as new."""

    key: bytes
    queue: str
    """Task queue on which it is started if it does not run."""

    @property
    def id(self) -> str:
        """The broker's workflow ID."""
        return ids.broker_id(self.key)

    @property
    def named(self) -> str:
        """The key, for people."""
        return shown(self.key)

    async def signal(self, call: wire.BrokerCall) -> bool:
        """Deliver a call. Returns False if none runs. Raises `ApplicationError` if the server refuses it."""
        try:
            await workflow.get_external_workflow_handle(self.id).signal(ids.APPLY, call)
        except ApplicationError as error:
            if error.type == GONE:
                return False
            raise
        return True

    async def start(self) -> bool:
        """Start it. Returns False if somebody else just has. It outlives this workflow."""
        try:
            handle = await workflow.start_child_workflow(
                ids.BROKER,
                wire.BrokerInput(wire.text_of(self.key)),
                id=self.id,
                task_queue=self.queue,
                memo={ids.MEMO: wire.text_of(self.key)},
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                static_summary=f"broker of {self.named}",
            )
        except WorkflowAlreadyStartedError:
            return False
        # however it ends, it is no error of this workflow that was never retrieved
        handle.add_done_callback(lambda child: child.cancelled() or child.exception())
        return True


@dataclass(slots=True)
class PendingCall:
    """A call to a broker, from before it is sent until its answer."""

    broker: Broker
    commands: Sequence[Command]
    take: Callable[[Sequence[Reply], float], None] | None = None
    """Gets the replies, and the time at which the call was sent."""
    alarm: Alarm = field(default_factory=Alarm)
    """Rung when the call is answered or cannot be delivered."""
    wanted: Callable[[], bool] = lambda: True
    """Asked before each step of the delivery."""
    starts: bool = False
    """Start a broker if none runs. Otherwise nothing happens then."""
    fast: bool = False

    sent: float = 0.0
    """The workflow's time when it was sent."""
    over: bool = False
    """The server has accepted or rejected it."""
    delivered: bool = False
    """It is in the broker's history, so the broker will apply it if it lives."""
    answered: bool = False
    has_started: bool = False
    """No broker ran, so one was started for it."""
    trouble: Exception | None = None
    """Why it could not be delivered. None also if no broker runs."""
    task: asyncio.Task[None] | None = None

    async def deliver(self, call: wire.BrokerCall) -> None:
        """Deliver it to the broker, and start one if that is wanted and none runs.

        Run it in a task that nobody cancels: the SDK mistakes a cancellation of these steps for one of
        what they do.
        """
        try:
            for _ in range(STARTS):
                if not self.wanted():
                    break
                self.delivered = await self.broker.signal(call)
                if self.delivered or not (self.starts and self.wanted()):
                    break
                self.has_started = await self.broker.start() or self.has_started
            else:
                self.trouble = ApplicationError(f"{self.broker.id} ends as soon as it is started")
        except Exception as error:  # noqa: BLE001 - whoever waits raises it, in a task of its own
            self.trouble = error
        self.over = True
        if not self.delivered:
            self.alarm.ring()

    @property
    def settled(self) -> bool:
        """Whether it is answered, or never will be."""
        return self.answered or (self.over and not self.delivered)

    async def wait_over(self) -> None:
        """Wait until the server has accepted or rejected it. That is soon: no worker is needed."""
        if self.task is not None:
            await workflow.wait([self.task])

    async def wait_settled(self, until: float, summary: str) -> None:
        """Wait until it is answered or cannot be, at most until that time."""
        while not self.settled and workflow.time() < until:
            await self.alarm.wait(until, summary)


class BrokerCalls:
    """The calls and listeners of one workflow run, which all its semaphores and tasks share.

    The run's signal handler is its method, so it is found again through the handler, in the sandbox too.
    An answer finds its call by its number, and a notification its lease by the fingerprint.
    """

    def __init__(self) -> None:
        self._pending: dict[int, PendingCall] = {}
        self._listeners: dict[str, Callable[[Notification], None]] = {}
        self._holds: dict[str, tuple[bytes, int, asyncio.Task[Any] | None]] = {}

    @classmethod
    def of_this_run(cls) -> Self:
        """The calls of the workflow run that asks. Made on the first use."""
        handler = workflow.get_signal_handler(ids.NEWS)
        found = getattr(handler, "__self__", None)
        if not isinstance(found, cls):
            found = cls()
            workflow.set_signal_handler(ids.NEWS, found.receive)
        return found

    def raise_if_evicted(self) -> None:
        """Raise if the worker evicts this run, which looks like a cancellation to workflow code.

        A task that is created during an eviction never ends. Setting the handler again is the only call
        that raises then and changes nothing.
        """
        workflow.set_signal_handler(ids.NEWS, self.receive)

    def send(self, pending: PendingCall) -> PendingCall:
        """Send a call in a task of its own, which no cancellation of the caller reaches."""
        # Not counted: a reset brings the signals of the run before, and so its answers, to this one.
        number = workflow.random().getrandbits(52)
        info = workflow.info()
        call = wire.BrokerCall(
            [encode(command) for command in pending.commands],
            number=number,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            fast=pending.fast,
        )
        pending.sent = workflow.time()
        self._pending[number] = pending
        pending.task = asyncio.create_task(self._deliver(pending, call))
        return pending

    async def _deliver(self, pending: PendingCall, call: wire.BrokerCall) -> None:
        await pending.deliver(call)
        if not pending.delivered:
            self._pending.pop(call.number, None)

    def listen(self, lease: str, listener: Callable[[Notification], None]) -> None:
        """Pass the notifications about a lease, named by its fingerprint, to the listener."""
        self._listeners[lease] = listener

    def leave(self, lease: str) -> None:
        """Forget a lease that is over."""
        self._listeners.pop(lease, None)
        self._holds.pop(lease, None)

    def hold(self, lease: str, key: bytes, units: int) -> None:
        """Note that the current task holds units of a key."""
        self._holds[lease] = (key, units, asyncio.current_task())

    def held_here(self, key: bytes) -> int:
        """Units of a key that the current task holds."""
        me = asyncio.current_task()
        return sum(units for of, units, task in self._holds.values() if of == key and task is me)

    def receive(self, news: wire.News) -> None:
        """Take a signal with answers and notifications."""
        newer = wire.too_new(
            "news from a broker", news.format, "the worker of this workflow", wire.FORMAT
        )
        if newer:
            workflow.logger.error("%s", newer)
            return
        key = wire.bytes_of(news.key)
        for answer in news.answers:  # first: the notifications with them happened later
            self._take_answer(key, answer)
        for packed in news.notifications:
            notification = decode_notification(packed, key, "")
            listener = self._listeners.get(notification.lease)
            if listener is not None:
                listener(notification)

    def _take_answer(self, key: bytes, answer: wire.BrokerAnswer) -> None:
        pending = self._pending.get(answer.number)
        if pending is None or pending.broker.key != key:
            return  # of the run before a reset
        del self._pending[answer.number]
        pending.answered = True
        if pending.take is not None:
            pending.take([decode_reply(packed, key) for packed in answer.replies], pending.sent)
        pending.alarm.ring()
