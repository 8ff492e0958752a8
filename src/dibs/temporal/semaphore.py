"""A semaphore and a lock for workflow code."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Never, Unpack

from temporalio import workflow

from dibs.config import Duration, seconds
from dibs.core.names import key_of
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.ids import permit_workflow_id
from dibs.stores.temporal.protocol.permits import Adoption
from dibs.stores.temporal.protocol.wire import MOST_SLOTS
from dibs.stores.temporal.workflows.permit_runs import PermitRun
from dibs.temporal import defaults
from dibs.temporal.defaults import named_queue
from dibs.temporal.failures import AcquireTimedOut, Misused, PermitLost, checked
from dibs.temporal.fair.acquiring import acquire_fair, reattach_fair
from dibs.temporal.permits.permit import Acquiring, Handoff, Permit, settle
from dibs.temporal.permits.terms import (
    Asked,
    OnHolderClose,
    Pool,
    Terms,
    Tried,
    refuse_waiting,
    terms,
)
from dibs.temporal.slot.acquiring import acquire_slot
from dibs.temporal.slot.here import here
from dibs.temporal.slot.permit import SlotPermit, wait_until_armed


class Semaphore:
    """At most `capacity` workflows at a time hold a permit on a resource.

    Without `fair`, each permit is a workflow of its own, `permit:{resource}:{slot}`. It runs on
    `task_queue`, else on TEMPORAL_TASK_QUEUE, else on the caller's own queue, where the worker has to know
    `PermitSlotWorkflow`; `DibsPlugin` registers it. Waiters try again and again, in no order. With
    `fair=True` a broker keeps the order. It runs on `distributed-lock-tq` unless another queue is named.

    `on_holder_close` is what becomes of a permit whose holder ends without having released it, as when it
    is terminated. "safe": it stays until its lease ends, since activities of that holder may still run.
    "fast": it ends at once, and only the fencing token tells late work from that of the next holder.
    `quarantine`: so many seconds the slot stays taken instead where the holder has ended so, and as well
    where a block ends by an error, be it a cancellation or a time-out, which may leave an activity running;
    let it outlast the heartbeat timeout. 0 for activities with `WAIT_CANCELLATION_COMPLETED`.

    A fair semaphore and one without `fair` don't exclude each other, though they have the same name.
    """

    kind: ClassVar[str] = "semaphore"

    def __init__(
        self,
        resource: str,
        *,
        capacity: int,
        task_queue: str | None = None,
        fair: bool = False,
        on_holder_close: OnHolderClose = "safe",
        quarantine: Duration = 0.0,
        armed: bool = True,
        **others: Never,
    ) -> None:
        self.resource = resource
        self.capacity = capacity
        self.fair = fair
        self.on_holder_close: OnHolderClose = on_holder_close
        self.armed = armed
        with checked():
            if others:  # Python's own error would have the workflow task retried for ever
                raise TypeError(
                    f"no option {min(others)}= here; ttl=, wait= and so on go to acquire()"
                )
            self.task_queue = named_queue(task_queue)
            self.quarantine = seconds(quarantine, "quarantine")
            _check_mode(self)
            _check_pool(self)
            _check_close(self)
        self._blocks: dict[asyncio.Task[Any] | None, list[Acquiring]] = {}

    def acquire(self, **asked: Unpack[Asked]) -> Acquiring:
        """A slot: `async with semaphore.acquire() as permit:`, or `permit = await semaphore.acquire()`.

        Options: `ttl`, `wait`, `backoff`, `max_backoff`, `units`, `priority`, `note`, `auto_renew`,
        `max_hold`; `timeout` is another word for `wait`. It stands for `ttl` seconds, and is renewed for
        at most `max_hold`. With `lease=` instead of `ttl=` it is not renewed. Taken slots are tried again
        after `backoff` seconds, then ever more rarely up to `max_backoff`, and never at more than some
        900 events of history an hour. A cancellation while waiting leaves nothing behind.

        Raises `AcquireTimeout` after `wait` seconds, `Reentrant` where this task would wait for itself,
        `BackendUnavailable` where no worker serves the permits.
        """
        found = terms(**asked)
        with checked():
            _check_terms(self, asked, found)
        return Acquiring(lambda: self._obtain(found))

    async def try_acquire(self, **asked: Unpack[Tried]) -> Permit | None:
        """A slot if one is free now, else None. Of many slots some are tried; with `fair`, the broker knows.

        It may be told what `acquire()` may, but for what is about waiting, and raises what that does.
        """
        refuse_waiting(asked)
        try:
            return await self.acquire(**asked, wait=0)
        except AcquireTimedOut:
            return None

    def reattach(self, handoff: Handoff | Mapping[str, Any]) -> Acquiring:
        """The permit that an earlier run of this workflow has detached, entered like one acquired.

        Raises `LeaseLost` if it has ended meanwhile, `Misused` for one of something else.
        """
        found = Handoff.of(handoff)
        if found.resource != self.resource or (found.mode == "fair") != self.fair:
            raise Misused(
                f"this permit is on {found.resource} ({found.mode}), and this is {self!r}: reattach it there"
            )
        return Acquiring(lambda: self._reobtain(found))

    async def _obtain(self, terms: Terms) -> Permit:
        self._check_place()
        if self.fair:
            return await acquire_fair(self, terms)
        return await acquire_slot(self, terms)

    async def _reobtain(self, handoff: Handoff) -> Permit:
        self._check_place()
        if self.fair:
            return await reattach_fair(self, handoff)
        return await reattach_slot(self, handoff)

    def _check_place(self) -> None:
        if not workflow.in_workflow():
            raise Misused(
                f"{self!r} is for workflow code; elsewhere use dibs.{type(self).__name__} with "
                'client=connect("temporal://host:7233/namespace")'
            )

    async def __aenter__(self) -> Permit:
        block = self.acquire()
        permit = await block.__aenter__()
        self._blocks.setdefault(asyncio.current_task(), []).append(block)
        return permit

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        me = asyncio.current_task()
        block = self._blocks[me].pop()
        if not self._blocks[me]:
            del self._blocks[me]
        await block.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        fair = ", fair=True" if self.fair else ""
        return f"{type(self).__name__}({self.resource!r}, capacity={self.capacity}{fair})"


def _check_mode(asked: Semaphore) -> None:
    """Fair or not, and what goes with that."""
    for name in ("fair", "armed"):
        value = getattr(asked, name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}: give True or False")
    if asked.fair and not asked.armed:
        raise ValueError("armed=False is for slot mode: with fair=True it is a broker that grants")


def _check_pool(asked: Semaphore) -> None:
    if not isinstance(asked.resource, str):
        raise TypeError(f"a resource's name is a text, not {asked.resource!r}")
    if type(asked.capacity) is not int or asked.capacity < 1:
        raise ValueError(f"capacity is {asked.capacity!r}: give an int from 1")
    key_of("lock" if asked.kind == "lock" else "semaphore", asked.resource)
    if asked.fair:
        return
    if asked.capacity > MOST_SLOTS:
        raise ValueError(
            f"capacity is {asked.capacity}: slot mode has at most {MOST_SLOTS} slots, as each is a workflow "
            "ID; use fair=True for more"
        )
    permit_workflow_id(asked.resource, str(asked.capacity - 1))


def _check_terms(asked: Semaphore, given: Mapping[str, Any], found: Terms) -> None:
    """What one way of acquiring has, and the other hasn't."""
    if asked.fair:
        for name in ("backoff", "max_backoff"):
            if given.get(name) is not None:
                raise ValueError(f"{name}= is for slot mode: a broker tells those who wait")
    elif found.units != 1 or found.priority:
        raise ValueError(
            "units= and priority= need fair=True: without a broker a permit is one slot"
        )


def _check_close(asked: Semaphore) -> None:
    """What becomes of a permit whose holder ends without having released it."""
    if asked.on_holder_close not in ("fast", "safe"):
        raise ValueError(f'on_holder_close is {asked.on_holder_close!r}: give "fast" or "safe"')
    if asked.quarantine and asked.on_holder_close == "fast":
        raise ValueError('quarantine= is for on_holder_close="safe": "fast" waits for nothing')
    if asked.quarantine and not asked.armed and not asked.fair:
        raise ValueError(
            "quarantine= needs armed=True: a permit that can't speak to its holder would retire "
            "without a word of it"
        )


async def reattach_slot(pool: Pool, handoff: Handoff) -> SlotPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    here().take(pool.resource, handoff.slots[0])
    permit = _permit(pool, handoff)
    adopting = asyncio.create_task(_adopt(handoff))
    cancelled = await settle(adopting)
    try:
        if not adopting.result():
            raise PermitLost(
                f"the permit on {pool.resource}:{permit.slot} (token {handoff.token}) has ended "
                "before this run took it up",
                reason="closed",
            )
        if cancelled is not None:
            raise cancelled
        ends = handoff.until + pool.quarantine + defaults.GRACE
        await wait_until_armed(permit, defaults.ARMED, pool, until=ends)
        await permit.stands()
        permit.ensure()
    except BaseException:
        await permit.release()
        raise
    permit.keep()
    return permit


def _permit(pool: Pool, handoff: Handoff) -> SlotPermit:
    """As the run before knew it."""
    return SlotPermit(
        resource=pool.resource,
        slot=handoff.slots[0],
        run_id=handoff.run_id,
        ttl=handoff.ttl,
        began=workflow.time(),
        until=handoff.until,
        renews=handoff.renews,
        acquired_at=handoff.acquired_at,
        stays=pool.on_holder_close == "safe",
        quarantine=pool.quarantine,
        token=handoff.token,
    )


async def _adopt(handoff: Handoff) -> bool:
    """Have it report to this run; False if it has ended."""
    info = workflow.info()
    adoption = Adoption(info.workflow_id, info.run_id, handoff.ttl)
    permit_workflow_id = ids.permit_workflow_id(handoff.resource, handoff.slots[0])
    return await PermitRun(permit_workflow_id, handoff.run_id).adopt(adoption)


class Lock(Semaphore):
    """One workflow at a time holds it: a semaphore with the one slot "0"; see there for the rest.

    Without `fair` a `Lock` and a `Semaphore` of one name, capacity 1, exclude each other.
    """

    kind: ClassVar[str] = "lock"

    def __init__(
        self,
        name: str,
        *,
        task_queue: str | None = None,
        fair: bool = False,
        on_holder_close: OnHolderClose = "safe",
        quarantine: Duration = 0.0,
        armed: bool = True,
        **others: Never,
    ) -> None:
        super().__init__(
            name,
            capacity=1,
            task_queue=task_queue,
            fair=fair,
            on_holder_close=on_holder_close,
            quarantine=quarantine,
            armed=armed,
            **others,
        )

    def __repr__(self) -> str:
        return f"Lock({self.resource!r}{', fair=True' if self.fair else ''})"
