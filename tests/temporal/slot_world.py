"""Slot mode at work: a worker for our permits, one for the guide's, one for holders and their activities."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError

from dibs.temporal.slots.workflow import PermitSlotWorkflow
from tests.temporal.guide import GuidePermit
from tests.temporal.slot_workflows import Curious, Held, Holder, Interrupted, Relay, Spec, TwoTasks
from tests.temporal.workers import connected, history_of, kinds, unique, until, worker

if TYPE_CHECKING:
    from tests.servers.temporal import TemporalServer

HOLDERS = (Holder, TwoTasks, Interrupted, Relay, Curious)


class Work:
    """What activities did, and when."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []
        self.begun: set[str] = set()

    @activity.defn
    async def busy(self, who: str, seconds: float) -> None:
        """Works on whatever happens to its workflow, as a thread would."""
        await asyncio.shield(self._span(who, seconds))

    @activity.defn
    async def flaky(self, who: str, seconds: float) -> None:
        """Likewise; its first attempt fails at its end."""
        await asyncio.shield(self._span(who, seconds))
        if activity.info().attempt == 1:
            raise ApplicationError("once more")

    async def _span(self, who: str, seconds: float) -> None:
        began = time.time()
        self.begun.add(who)
        await asyncio.sleep(seconds)
        self.spans.append((who, began, time.time()))

    async def spans_when_done(self, *who: str) -> list[tuple[float, float]]:
        """Those of so many workflows, one each, once they have ended."""

        async def done() -> bool:
            return {name for name, _, _ in self.spans} >= set(who)

        await until(done)
        return self.spans_of(*who)

    def spans_of(self, *who: str) -> list[tuple[float, float]]:
        return [(began, ended) for name, began, ended in self.spans if name in who]


def overlap(spans: list[tuple[float, float]]) -> float:
    """How many seconds two of them went on at once, at most."""
    ordered = sorted(spans)
    last, most = float("-inf"), 0.0
    for began, ended in ordered:
        most = max(most, min(last, ended) - began)
        last = max(last, ended)
    return most


@dataclass
class SlotWorld:
    """What a test needs."""

    client: Client
    permits: str
    """The queue of our permits."""
    guides: str
    """The queue of the guide's."""
    holders: str
    work: Work = field(default_factory=Work)

    def spec(self, way: str = "ours", resource: str = "", **more: Any) -> Spec:
        queue = self.guides if way == "guide" else self.permits
        return Spec(resource or unique("slots"), **{"queue": queue, "way": way, **more})

    async def start(
        self, workflow: type, *args: Any, result: type | None = None
    ) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            workflow.__name__,
            args=list(args),
            id=unique("holder"),
            task_queue=self.holders,
            result_type=result,
        )

    async def hold(self, spec: Spec) -> WorkflowHandle[Any, Held]:
        return await self.start(Holder, spec, result=Held)

    async def until_inside(self, handle: WorkflowHandle[Any, Any]) -> None:
        async def inside() -> bool:
            found: bool = await handle.query("entered")
            return found

        await until(inside)

    async def tries(self, waiter: WorkflowHandle[Any, Any]) -> int:
        """How often it has asked for a permit in vain."""
        found = await history_of(self.client, waiter.id)
        return kinds(found).count("START_CHILD_WORKFLOW_EXECUTION_FAILED")

    async def was_told(self, permit: WorkflowHandle[Any, Any], signal: str) -> bool:
        """Whether a permit was sent such a signal."""
        found = await history_of(self.client, permit.id)
        return any(
            each.workflow_execution_signaled_event_attributes.signal_name == signal
            for each in found.events
        )

    async def permit_status(self, spec: Spec, slot: int = 0) -> str:
        found = await self.permit(spec, slot).describe()
        return found.status.name if found.status else ""

    def permit(self, spec: Spec, slot: int = 0) -> WorkflowHandle[Any, Any]:
        """Of its latest permit."""
        return self.client.get_workflow_handle(f"permit:{spec.resource}:{slot}", result_type=str)

    async def outcomes(self, handle: WorkflowHandle[Any, Any]) -> list[str]:
        """How the permits of a holder have ended, as the types of its events tell."""
        prefix = "CHILD_WORKFLOW_EXECUTION_"
        found = await history_of(self.client, handle.id)
        return [
            kind.removeprefix(prefix)
            for kind in (str(_name(each)) for each in found.events)
            if kind.startswith(prefix) and kind != prefix + "STARTED"
        ]


def _name(event: Any) -> str:
    from temporalio.api.enums.v1 import EventType

    return EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")


@asynccontextmanager
async def slot_world(server: "TemporalServer") -> AsyncIterator[SlotWorld]:
    """Workers for the block; without a sandbox, in which each workflow imports everything anew."""
    client, work = await connected(server), Work()
    acts = [work.busy, work.flaky]
    async with (
        worker(client, PermitSlotWorkflow, sandboxed=False) as permits,
        worker(client, GuidePermit, sandboxed=False) as guides,
        worker(client, *HOLDERS, activities=acts, sandboxed=False) as holders,
    ):
        yield SlotWorld(client, permits, guides, holders, work)
