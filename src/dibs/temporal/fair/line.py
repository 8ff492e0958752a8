"""The one line between a workflow's run and the brokers that it has to do with."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from temporalio import workflow
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from dibs.core.codec import decode_notification, decode_reply, encode
from dibs.core.names import shown
from dibs.model import Command, Notification, Reply
from dibs.stores.temporal.protocol import ids, wire
from dibs.stores.temporal.protocol.owners import inbox_of
from dibs.stores.temporal.protocol.wire import too_new
from dibs.temporal.sdk import GONE

STARTS = 10
"""A broker that ends as often right after it was started will do so again."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker of a key is to be found. By its ID alone: it continues as new."""

    key: bytes
    queue: str
    """Where it is started if it doesn't run."""

    @property
    def id(self) -> str:
        """Its workflow ID."""
        return ids.broker_id(self.key)

    @property
    def named(self) -> str:
        """The key, for people."""
        return shown(self.key)

    async def deliver(
        self, call: wire.BrokerCall, wanted: Callable[[], bool], started: Callable[[], None] | None
    ) -> bool:
        """Bring the call to it; tell whether it is in its history.

        Where none runs it is started only if somebody wants to be told of that.

        Raises `ApplicationError` where the server refuses. To be run in a task that nobody cancels: the
        SDK takes a cancellation of these steps for one of what they do.
        """
        handle = workflow.get_external_workflow_handle(self.id)
        for _ in range(STARTS):
            if not wanted():
                return False
            try:
                await handle.signal(ids.APPLY, call)
                return True
            except ApplicationError as error:
                if error.type != GONE:
                    raise
            if started is None or not wanted():
                return False
            if await self._start():
                started()
        raise ApplicationError(f"the broker {self.id} ends as soon as it is started")

    async def _start(self) -> bool:
        """Start it, unless somebody just has: False. It outlives this workflow."""
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
        handle.add_done_callback(_look_at)
        return True


def _look_at(child: workflow.ChildWorkflowHandle[object, object]) -> None:
    """However the broker ends, it is no error of this workflow's that nobody has looked at."""
    if not child.cancelled():
        child.exception()


class Bell:
    """Wakes the one task that waits for it, when it is rung or when it is time.

    To move a timer is two events in the history each time. So one that rings too early is left as it is,
    and a wait that ends otherwise leaves it for the next, until `close`.
    """

    def __init__(self) -> None:
        self._rung: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._due = 0.0

    def ring(self) -> None:
        """Something has changed: look again."""
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)

    async def wait(self, until: float, summary: str) -> None:
        """Until it rings, until then, or until a little before; `summary` is seen in Temporal's UI.

        Unlike `wait_condition` it never ends with a cancellation that was meant for another task.
        """
        self._rung = rung = asyncio.get_running_loop().create_future()
        timer = self._set(until, summary)
        await workflow.wait([timer, rung], return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_set(self) -> bool:
        """It will ring by itself."""
        return self._timer is not None and not self._timer.done()

    def close(self) -> None:
        """Ring no more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, until: float, summary: str) -> asyncio.Task[None]:
        if self._timer is None or self._timer.done() or until < self._due:
            self.close()
            left = max(until - workflow.time(), 0.001)
            self._timer = asyncio.create_task(workflow.sleep(left, summary=summary))
            self._due = until
        return self._timer


def _nobody(_replies: Sequence[Reply], _sent: float) -> None:
    """Whose answer is of no interest."""


def _always() -> bool:
    return True


@dataclass(slots=True)
class Calling:
    """A call, from the wish for it to its answer."""

    broker: Broker
    commands: Sequence[Command]
    take: Callable[[Sequence[Reply], float], None] = _nobody
    """Gets the replies, and the time at which the call was sent."""
    bell: Bell = field(default_factory=Bell)
    """Rung when it is answered, or can't be delivered."""
    wanted: Callable[[], bool] = _always
    """Asked before each step of the delivery."""
    starts: bool = False
    """Where no broker runs, start one; else nothing is done there."""
    fast: bool = False

    sent: float = 0.0
    """The workflow's time when it was made."""
    over: bool = False
    """The server has said what became of it."""
    delivered: bool = False
    """It is in the broker's history, so the broker will apply it if it lives."""
    answered: bool = False
    has_started: bool = False
    """No broker was there, so one has been started for it."""
    trouble: Exception | None = None
    """Why it could not be delivered; None as well where no broker runs."""
    task: asyncio.Task[None] | None = None

    def note_start(self) -> None:
        """There was no broker, and now there is."""
        self.has_started = True

    async def wait_over(self) -> None:
        """Until the server has said what became of it: soon, as nobody but the server is asked."""
        if self.task is not None:
            await workflow.wait([self.task])

    @property
    def settled(self) -> bool:
        """It is answered, or never will be."""
        return self.answered or (self.over and not self.delivered)

    async def wait_settled(self, until: float, summary: str) -> None:
        """Until it is answered or can't be, until then at the latest."""
        while not self.settled and workflow.time() < until:
            await self.bell.wait(until, summary)


class Line:
    """Several semaphores and tasks of one run share it: answers find their call by its number, pushes
    their lease by its fingerprint.

    It has no place of its own in memory: the run's signal handler is its method, so whoever asks for
    the handler has the line, in the sandbox and out of it.
    """

    def __init__(self) -> None:
        self._callings: dict[int, Calling] = {}
        self._listeners: dict[str, Callable[[Notification], None]] = {}
        self._holds: dict[str, tuple[bytes, int, asyncio.Task[Any] | None]] = {}

    @classmethod
    def of_this_run(cls) -> Self:
        """The line of the workflow run that calls it; a new one the first time."""
        handler = workflow.get_signal_handler(ids.NEWS)
        line = getattr(handler, "__self__", None)
        if not isinstance(line, cls):
            line = cls()
            workflow.set_signal_handler(ids.NEWS, line.hear)
        return line

    @property
    def inbox(self) -> str:
        """Where pushes for this run go."""
        info = workflow.info()
        return inbox_of(info.workflow_id, info.run_id)

    def refuse_if_put_away(self) -> None:
        """Raises where a worker only drops this run from its memory, which to the code is a cancellation.

        A task that was begun then would never end. Of all that raises there this changes nothing else.
        """
        workflow.set_signal_handler(ids.NEWS, self.hear)

    def send(self, calling: Calling) -> Calling:
        """Send a call in a task of its own, which no cancellation of the caller's touches."""
        # Not counted: a reset brings the signals of the run before, and so its answers, to this one.
        number = workflow.random().getrandbits(52)
        calling.sent = workflow.time()
        self._callings[number] = calling
        calling.task = asyncio.create_task(self._deliver(calling, number))
        return calling

    async def _deliver(self, calling: Calling, number: int) -> None:
        info = workflow.info()
        call = wire.BrokerCall(
            [encode(command) for command in calling.commands],
            number=number,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            fast=calling.fast,
        )
        try:
            calling.delivered = await calling.broker.deliver(
                call, calling.wanted, calling.note_start if calling.starts else None
            )
        except Exception as error:  # noqa: BLE001 - whoever waits raises it, in a task of its own
            calling.trouble = error
        if not calling.delivered or calling.take is _nobody:
            self._callings.pop(number, None)
        calling.over = True
        if not calling.delivered:
            calling.bell.ring()

    def listen(self, lease: str, listener: Callable[[Notification], None]) -> None:
        """Have what is pushed for a lease, named by its fingerprint, told to the listener."""
        self._listeners[lease] = listener

    def leave(self, lease: str) -> None:
        """It is over: nobody listens for it any more."""
        self._listeners.pop(lease, None)
        self._holds.pop(lease, None)

    def hold(self, lease: str, key: bytes, units: int) -> None:
        """The task that runs now has so many units of a key."""
        self._holds[lease] = (key, units, asyncio.current_task())

    def held_here(self, key: bytes) -> int:
        """How many units of a key the task that runs now has."""
        me = asyncio.current_task()
        return sum(units for of, units, task in self._holds.values() if of == key and task is me)

    def hear(self, news: wire.News) -> None:
        """The signal that brings answers and pushes."""
        newer = too_new(
            "news from a broker", news.format, "the worker of this workflow", wire.FORMAT
        )
        if newer:
            workflow.logger.error("%s", newer)
            return
        key = wire.bytes_of(news.key)
        for answer in news.answers:  # first: what is pushed with them happened after
            self._hear_answer(key, answer)
        for packed in news.notifications:
            notification = decode_notification(packed, key, "")
            listener = self._listeners.get(notification.lease)
            if listener is not None:
                listener(notification)

    def _hear_answer(self, key: bytes, answer: wire.BrokerAnswer) -> None:
        calling = self._callings.get(answer.number)
        if calling is None or calling.broker.key != key:
            return  # of a call that nobody waits for any more
        del self._callings[answer.number]
        calling.answered = True
        calling.take([decode_reply(packed, key) for packed in answer.replies], calling.sent)
        calling.bell.ring()
