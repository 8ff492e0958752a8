"""Those who contend: workflows that acquire, work, and release, in all the shapes that applications have.

| shape | does |
|---|---|
| plain | one turn after the other |
| twins | two tasks of one workflow, side by side |
| renews | works twice under one permit, and renews it in between |
| hurries | gives up soon if it isn't served |
| restarts | continues as new from inside the block, so it gives its permit up on the way |
| carries | hands its permit to its next run, which goes on under it |
| overruns | works longer than its lease, and gives up late |
"""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from dibs.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from dibs.temporal import Permit, Semaphore
from dibs.temporal.permit import Handoff
from tests.temporal.torture.records import LeaseName

HOLDER = "TortureHolder"
type Shape = Literal["plain", "twins", "renews", "hurries", "restarts", "carries", "overruns"]
SHAPES: tuple[Shape, ...] = (
    "plain", "twins", "renews", "hurries", "restarts", "carries", "overruns",
)  # fmt: skip

BY_OTHERS = ("closed", "revoked")
ENDED_BY_OTHERS = "ended by others"
"""How a turn ended whose permit somebody else has ended, which nobody may here."""
GRAIN = 0.05
"""Seconds that must be left for work to begin."""


USE = "TortureUse"


@dataclass
class Use:
    """What an activity works under. Times are the server's, in seconds since 1970."""

    lease: str
    key: str
    token: int
    slots: list[int]
    capacity: int
    invoked: float
    """When the holder began to ask."""
    until: float
    """Up to when it believes that it holds."""
    seconds: float
    first: bool = True
    """The holder has not worked under this permit before."""


@dataclass
class Order:
    """What a holder is to do."""

    resource: str
    capacity: int
    queue: str
    """That serves permits and brokers."""
    shape: str = "plain"
    fair: bool = False
    ttl: float = 4.0
    backoff: float = 0.2
    wait: float = 60.0
    auto_renew: bool = True
    units: int = 1
    priority: int = 0
    works: list[float] = field(default_factory=lambda: [0.05])
    """How long the work of each turn takes."""
    carried: Handoff | None = None
    """A permit of the run before this one."""
    carried_use: Use | None = None
    told: dict[str, int] = field(default_factory=dict[str, int])
    """How the turns of earlier runs ended."""


@workflow.defn(name=HOLDER)
class Holder:
    """Counts how its turns ended."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._turns = 0

    @workflow.run
    async def run(self, order: Order) -> dict[str, int]:
        self._told = dict(order.told)
        self._semaphore = Semaphore(
            order.resource, capacity=order.capacity, task_queue=order.queue, fair=order.fair
        )
        if order.carried is not None:
            await self._ended(order, self._go_on(order, order.carried))
        for number, seconds in enumerate(order.works):
            rest = replace(order, works=order.works[number + 1 :], carried=None, carried_use=None)
            turn = self._turn(order, seconds, rest)
            if order.shape == "twins":
                await asyncio.gather(
                    self._ended(order, turn), self._ended(order, self._turn(order, seconds, rest))
                )
            else:
                await self._ended(order, turn)
        return self._told

    def _must_know(self, order: Order) -> bool:
        """Whoever renews may find it gone before it hears that it has expired."""
        return not order.auto_renew and order.shape not in ("renews", "carries")

    async def _ended(self, order: Order, turn: Any) -> None:
        """How a turn ended is counted; what should not happen fails the workflow."""
        try:
            self._tell(await turn)
        except LeaseLost as loss:
            self._tell("lost")
            if loss.reason in BY_OTHERS and self._must_know(order):
                self._tell(ENDED_BY_OTHERS)
        except AcquireTimeout:
            self._tell("gave up")
        except BackendUnavailable:
            self._tell("not served")
        except ActivityError:
            self._tell("work failed")

    def _tell(self, what: str) -> None:
        self._told[what] = self._told.get(what, 0) + 1

    async def _turn(self, order: Order, seconds: float, rest: Order) -> str:
        invoked = workflow.now().timestamp()
        self._turns += 1
        turn = self._turns
        async with self._semaphore.acquire(**_terms(order)) as permit:
            use = self._use(order, permit, turn, invoked)
            match order.shape:
                case "renews":
                    await self._work(permit, replace(use, seconds=seconds))
                    await permit.renew()
                    more = replace(use, seconds=seconds, first=False)
                    return await self._work(permit, more)
                case "restarts" if rest.works:
                    await self._work(permit, replace(use, seconds=seconds))
                    self._tell("restarted")
                    workflow.continue_as_new(replace(rest, told=self._told))
                case "carries" if rest.works:
                    await self._work(permit, replace(use, seconds=seconds))
                    carried = await permit.detach()
                case "overruns":
                    return await self._work(
                        permit, replace(use, seconds=1.2 * order.ttl), after=0.5 * order.ttl
                    )
                case _:
                    return await self._work(permit, replace(use, seconds=seconds))
        self._tell("carried")
        workflow.continue_as_new(replace(rest, told=self._told, carried=carried, carried_use=use))

    async def _go_on(self, order: Order, carried: Handoff) -> str:
        """Under the permit of the run before."""
        assert order.carried_use is not None
        async with self._semaphore.reattach(carried) as permit:
            use = replace(order.carried_use, seconds=0.05, first=False)
            return await self._work(permit, use)

    def _use(self, order: Order, permit: Permit, turn: int, invoked: float) -> Use:
        info, token = workflow.info(), permit.token or 0
        return Use(
            lease=str(LeaseName(info.workflow_id, info.run_id, turn, permit.run_id, token)),
            key=f"semaphore:{order.resource}",
            token=token,
            slots=[int(slot) for slot in permit.slots],
            capacity=order.capacity,
            invoked=invoked,
            until=0.0,
            seconds=0.0,
        )

    async def _work(self, permit: Permit, use: Use, after: float = 0.0) -> str:
        """For no longer than the permit stands, unless the work is one that overruns (`after`)."""
        left = permit.remaining
        if left < GRAIN:
            return "late"
        in_time = await workflow.execute_activity(
            USE,
            replace(use, until=workflow.now().timestamp() + left),
            result_type=bool,
            schedule_to_close_timeout=timedelta(seconds=left + after),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return "worked" if in_time else "overran"


def _terms(order: Order) -> dict[str, Any]:
    terms: dict[str, Any] = {
        "ttl": order.ttl,
        "wait": order.wait,
        "auto_renew": order.auto_renew,
    }
    if order.fair:
        return {**terms, "units": order.units, "priority": order.priority}
    return {**terms, "backoff": order.backoff, "max_backoff": 5 * order.backoff}
