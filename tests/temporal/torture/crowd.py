"""Holders come and go: so many at a time, each a workflow of a drawn shape."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from tests.temporal.torture.holders import HOLDER, SHAPES, Order
from tests.temporal.torture.plan import POOLS, QUEUE, Plan

BRIEF = (0.02, 0.2)
"""How long most work takes, in seconds."""
OFTEN = {"plain": 5.0, "hurries": 0.5}
TASK = timedelta(seconds=2)
"""Within which a worker has to answer for a workflow's task; a dead one's tasks wait that long."""
PATIENCE = 60.0
_PASSES = {
    RPCStatusCode.UNAVAILABLE, RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN, RPCStatusCode.ABORTED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
"""Of errors that another try may mend, while the server is struck."""


async def steady[T](call: Callable[[], Awaitable[T]]) -> T:
    """Its result, or an error that another try would not mend."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return await call()
        except RPCError as error:
            if error.status not in _PASSES or time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


async def found[T](call: Callable[[], Awaitable[T]]) -> T | None:
    """Likewise; None for a workflow that isn't there, or has ended already."""
    try:
        return await steady(call)
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
            return None
        raise


@dataclass
class Ends:
    """How holders ended."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    turns: Counter[str] = field(default_factory=Counter[str])
    """How the turns of those ended that told."""
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """By workflow ID: why one failed, which none should."""
    arrivals: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """Of workflow and run: when its first question had come to the broker, in seconds since 1970."""


class Crowd:
    """Starts them, and sees each to its end."""

    def __init__(self, client: Client, plan: Plan, prefix: str) -> None:
        self.ends = Ends()
        self.open: dict[str, Order] = {}
        """By workflow ID."""
        self.orders: dict[str, Order] = {}
        """Of all that there were."""
        self.coming = True
        """More are started where some have ended."""
        self.on_end: Callable[[str], None] = lambda workflow: None
        self._client, self._plan, self._prefix = client, plan, prefix
        self._draw = random.Random(plan.seed * 7919)
        self._started = 0

    async def run(self) -> None:
        """Until none are to come any more and all have ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.crowd):
                group.create_task(self._line())

    async def _line(self) -> None:
        while self.coming:
            workflow = f"{self._prefix}h{self._started}"
            self._started += 1
            await self._one(workflow, self._drawn())

    def _drawn(self) -> Order:
        plan, draw = self._plan, self._draw
        name, capacity = draw.choice(list(POOLS.items()))
        shapes = plan.shapes or [each for each in SHAPES if plan.slow or each != "overruns"]
        shape = draw.choices(shapes, [OFTEN.get(each, 1.0) for each in shapes])[0]
        fair = plan.mode == "fair"
        works = [self._work() for _ in range(draw.randint(*plan.turns))]
        return Order(
            resource=f"{self._prefix}{name}",
            capacity=capacity,
            shape=shape,
            fair=fair,
            ttl=plan.lease,
            backoff=plan.backoff,
            wait=draw.uniform(0.1, 1.0) if shape == "hurries" else 3 * plan.bound,
            auto_renew=shape != "overruns" and draw.random() < 0.7,
            units=draw.randint(1, capacity) if fair and draw.random() < 0.3 else 1,
            priority=draw.choice((0, 0, 0, 5)) if fair else 0,
            queue=f"{self._prefix}{QUEUE}",
            works=works[:2] if shape == "overruns" else works,
        )

    def _work(self) -> float:
        lease = self._plan.lease
        long = self._draw.random() < self._plan.long
        return self._draw.uniform(0.3 * lease, 0.8 * lease) if long else self._draw.uniform(*BRIEF)

    async def _one(self, workflow: str, order: Order) -> None:
        run: str | None = None
        with suppress(WorkflowAlreadyStartedError):  # an earlier try had come through, unanswered
            handle = await steady(
                lambda: self._client.start_workflow(
                    HOLDER,
                    order,
                    id=workflow,
                    task_queue=f"{self._prefix}{QUEUE}",
                    task_timeout=TASK,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                )
            )
            run = handle.first_execution_run_id
        self.open[workflow] = self.orders[workflow] = order
        try:
            await self._ended(workflow)
        finally:
            del self.open[workflow]
            self.on_end(workflow)
        if order.fair:
            await self._read(workflow, run)

    async def _ended(self, workflow: str) -> None:
        """A reset ends one run and begins the next, so what counts is the newest."""
        handle = self._client.get_workflow_handle(workflow, result_type=dict[str, int])
        while True:
            try:
                turns = await handle.result(rpc_timeout=timedelta(seconds=30))
            except RPCError:
                await asyncio.sleep(0.2)
                continue
            except WorkflowFailureError as error:
                status = (await steady(handle.describe)).status
                if status is WorkflowExecutionStatus.RUNNING:
                    continue
                self.ends.statuses[status.name if status else ""] += 1
                if status is WorkflowExecutionStatus.FAILED:
                    self.ends.failures[workflow] = repr(error.cause)
                return
            self.ends.statuses["COMPLETED"] += 1
            self.ends.turns.update(turns)
            return

    async def _read(self, workflow: str, run: str | None) -> None:
        """When the questions of each run had arrived, as its history tells."""
        while run:
            handle = self._client.get_workflow_handle(workflow, run_id=run)
            history = await found(handle.fetch_history)
            if history is None:
                return
            arrived = _arrived(history.events)
            if arrived is not None:
                self.ends.arrivals[workflow, run] = arrived
            last = history.events[-1].workflow_execution_continued_as_new_event_attributes
            run = last.new_execution_run_id


def _arrived(events: Sequence[HistoryEvent]) -> float | None:
    """When a run's first question had come to its broker; None if it had to ask for its first turn twice."""
    asked: set[int] = set()
    at: float | None = None
    for event in events:
        signal = event.signal_external_workflow_execution_initiated_event_attributes
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            break
        if any(b'["acquire",' in each.data for each in signal.input.payloads):
            asked.add(event.event_id)
        told = event.external_workflow_execution_signaled_event_attributes
        if told.initiated_event_id in asked:
            at = event.event_time.ToNanoseconds() / 1e9
    return at if len(asked) == 1 else None
