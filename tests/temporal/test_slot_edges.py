"""Slot mode where two things happen to a holder at the very same time."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from dibs.temporal import options
from dibs.temporal.errors import Misused
from dibs.temporal.permit import FORMAT, Handoff
from dibs.temporal.slots.run_state import MAX_EARLY_NEWS, RunState
from dibs.temporal.slots.workflow import ARMED, PermitNews, PermitSlotWorkflow
from tests.temporal.slot_workflows import Holder, Spec
from tests.temporal.slot_world import SlotWorld
from tests.temporal.workers import history_of, kinds, status_of, unique, until, until_closed, worker

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


class Apart:
    """A holder and its permit, whose workers are here in turns."""

    def __init__(self, world: SlotWorld) -> None:
        self.client = world.client
        self.spec = Spec(unique("slots"), unique("permits"), work="gate")
        self.holders = unique("holders")
        self.permit = world.permit(self.spec)

    async def until_armed(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Its permit has begun; and then has reported to the holder, whose worker is away."""
        async with self.holders_served():
            await self.until_at_rest(handle, "TIMER_STARTED")  # until it gives the permit up
        async with self.permits_served():
            await self.until_at_rest(self.permit, "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED")

    async def until_at_rest(self, handle: WorkflowHandle[Any, Any], kind: str) -> None:
        """Until it has dealt with that: a task that a leaving worker has got would be late."""

        async def dealt_with() -> bool:
            if not await status_of(self.client, handle.id):
                return False
            found = kinds(await history_of(self.client, handle.id))
            return kind in found and found[-1] in ("WORKFLOW_TASK_COMPLETED", kind)

        await until(dealt_with)

    def holders_served(self) -> AbstractAsyncContextManager[str]:
        """By a worker that keeps no run to itself, so that the next one need not wait for it."""
        return worker(self.client, Holder, queue=self.holders, sandboxed=False, cached=False)

    def permits_served(self) -> AbstractAsyncContextManager[str]:
        """Likewise."""
        kind, queue = PermitSlotWorkflow, self.spec.queue
        return worker(self.client, kind, queue=queue, sandboxed=False, cached=False)

    async def until(self, handle: WorkflowHandle[Any, Any], kind: str) -> None:
        """Until that is in its history."""

        async def there() -> bool:
            return kind in kinds(await history_of(self.client, handle.id))

        await until(there)

    async def start(self) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            Holder.run, self.spec, id=unique("holder"), task_queue=self.holders
        )


async def test_cancelled_in_the_moment_in_which_its_permit_reports(world: SlotWorld) -> None:
    apart = Apart(world)
    handle = await apart.start()
    await apart.until_armed(handle)
    await handle.cancel()
    async with (
        apart.holders_served(),
        apart.permits_served(),
    ):
        assert await until_closed(world.client, handle.id) == "CANCELED"
        assert await apart.permit.result() == "released"


async def test_its_patience_is_over_in_the_moment_in_which_its_permit_reports(
    world: SlotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in one workflow task: it has the permit, and gives it back in the end."""
    monkeypatch.setattr(options, "MIN_REPORT_TIMEOUT", 2.0)
    apart = Apart(world)
    apart.spec.acquire = {"wait": 0.5}
    handle = await apart.start()
    await apart.until_armed(handle)
    await apart.until(handle, "TIMER_FIRED")
    await handle.signal("go")
    async with (
        apart.holders_served(),
        apart.permits_served(),
    ):
        assert await until_closed(world.client, handle.id) == "COMPLETED"
        assert await apart.permit.result() == "released"


async def test_a_handoff_of_a_later_release_is_refused_with_what_to_do() -> None:
    later = {"resource": "x", "slots": ["0"], "run_id": "r", "token": 1, "ttl": 9.0}
    later |= {"acquired_at": 1.0, "until": 10.0, "renews": True}
    assert Handoff.of({**later, "colour": "blue"}).ttl == 9.0
    with pytest.raises(Misused, match="update that first"):
        Handoff.of({**later, "format": FORMAT + 1})


async def test_news_of_unknown_permits_are_kept_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A permit can report before its start is known here. Others report late, when they are over."""
    monkeypatch.setattr("temporalio.workflow.set_signal_handler", lambda *about: None)
    state = RunState()
    heard: list[PermitNews] = []
    news = [PermitNews(f"run {number}", ARMED) for number in range(MAX_EARLY_NEWS + 5)]
    for each in news:
        state._receive(each)
    state.listen("run 1", heard.append)  # among the oldest of too many
    state.listen(news[-1].permit, heard.append)
    assert heard == [news[-1]]
    state._receive(news[-1])
    assert heard == [news[-1], news[-1]], "at once, now that it is known"
