"""The semaphore and the lock of workflow code, in both modes."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Never, Unpack

from temporalio import workflow

from dibs.config import Duration, seconds
from dibs.core.names import key_of
from dibs.stores.temporal.ids import permit_workflow_id
from dibs.temporal.errors import AcquireTimedOut, Misused, checked
from dibs.temporal.fair.acquire import acquire_fair, reattach_fair
from dibs.temporal.options import (
    AcquireOptions,
    Asked,
    OnHolderClose,
    Tried,
    named_queue,
    refuse_waiting,
)
from dibs.temporal.permit import Handoff, Permit, PermitBlock
from dibs.temporal.slots.acquire import acquire_slot
from dibs.temporal.slots.permit import reattach_slot

MOST_SLOTS = 1_000
"""Slots of a pool in slot mode, at most. Each is a workflow ID."""


class Semaphore:
    """At most `capacity` workflows at a time hold a permit on a resource.

    Without `fair`, each permit is a workflow of its own, `permit:{resource}:{slot}`. It runs on
    `task_queue`, else on TEMPORAL_TASK_QUEUE, else on the caller's own queue, whose worker needs
    `PermitSlotWorkflow`; `DibsPlugin` registers it. Waiters poll, and are served in no order. With
    `fair=True` a broker keeps the order. It runs on `distributed-lock-tq` unless another queue is named.
    The two modes do not exclude each other, even for the same name.

    `on_holder_close` decides about a permit whose holder ends without releasing it, as when it is
    terminated. "safe": the permit lasts until its lease ends, because activities of that holder can still
    run. "fast": it ends at once, and only the fencing token distinguishes late work from that of the next
    holder. `quarantine`: seconds that the slot stays taken instead, and also after a block that ends by an
    error, be it a cancellation or a timeout, which may leave an activity running. Choose it longer than the
    heartbeat timeout. Activities with `WAIT_CANCELLATION_COMPLETED` need none.
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
        self.resource: str = resource
        self.capacity: int = capacity
        self.fair: bool = fair
        self.on_holder_close: OnHolderClose = on_holder_close
        self.armed: bool = armed
        with checked():
            if others:  # Python's own error would have the workflow task retried for ever
                raise TypeError(
                    f"no option {min(others)}= here; ttl=, wait= and so on go to acquire()"
                )
            self.task_queue: str | None = named_queue(task_queue)
            self.quarantine: float = seconds(quarantine, "quarantine")
            _check(self)
        self._blocks: dict[asyncio.Task[Any] | None, list[PermitBlock]] = {}

    def acquire(self, **asked: Unpack[Asked]) -> PermitBlock:
        """Acquire a slot: `async with semaphore.acquire() as permit:`, or `permit = await …`.

        Options: `ttl`, `wait`, `backoff`, `max_backoff`, `units`, `priority`, `note`, `auto_renew`,
        `max_hold`; `timeout` is another word for `wait`. The permit lasts `ttl` seconds, and is renewed for
        at most `max_hold`. With `lease=` instead of `ttl=` it is not renewed. Taken slots are tried again
        after `backoff` seconds, then less and less often up to `max_backoff`, with at most some 900 events
        of history an hour. A cancellation while waiting leaves nothing behind.

        Raises `AcquireTimeout` after `wait` seconds, `Reentrant` if this task would wait for itself,
        `BackendUnavailable` if no worker serves the permits.
        """
        found = AcquireOptions.of(**asked)
        with checked():
            _check_for_mode(self, asked, found)
        return PermitBlock(lambda: self._obtain(found))

    async def try_acquire(self, **asked: Unpack[Tried]) -> Permit | None:
        """Acquire a slot if one is free now, else return None.

        Without `fair`, it tries some of many slots only. Takes the options of `acquire()` that are not about
        waiting, and raises the same errors.
        """
        refuse_waiting(asked)
        try:
            return await self.acquire(**asked, wait=0)
        except AcquireTimedOut:
            return None

    def reattach(self, handoff: Handoff | Mapping[str, Any]) -> PermitBlock:
        """Take over a permit that an earlier run of this workflow has detached, like one acquired.

        Raises `LeaseLost` if it has ended meanwhile, `Misused` if it belongs to another semaphore.
        """
        found = Handoff.of(handoff)
        if found.resource != self.resource or (found.mode == "fair") != self.fair:
            raise Misused(
                f"this permit is on {found.resource} ({found.mode}), and this is {self!r}: reattach it there"
            )
        return PermitBlock(lambda: self._reobtain(found))

    async def _obtain(self, asked: AcquireOptions) -> Permit:
        self._check_place()
        if self.fair:
            return await acquire_fair(self, asked)
        return await acquire_slot(self, asked)

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


def _check(given: Semaphore) -> None:
    for name in ("fair", "armed"):
        value = getattr(given, name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}: give True or False")
    if given.fair and not given.armed:
        raise ValueError("armed=False is for slot mode: with fair=True it is a broker that grants")
    if not isinstance(given.resource, str):
        raise TypeError(f"a resource's name is a text, not {given.resource!r}")
    if type(given.capacity) is not int or given.capacity < 1:
        raise ValueError(f"capacity is {given.capacity!r}: give an int from 1")
    key_of("lock" if given.kind == "lock" else "semaphore", given.resource)
    if not given.fair:
        if given.capacity > MOST_SLOTS:
            raise ValueError(
                f"capacity is {given.capacity}: slot mode has at most {MOST_SLOTS} slots, as each is a "
                "workflow ID; use fair=True for more"
            )
        permit_workflow_id(given.resource, str(given.capacity - 1))
    if given.on_holder_close not in ("fast", "safe"):
        raise ValueError(f'on_holder_close is {given.on_holder_close!r}: give "fast" or "safe"')
    if given.quarantine and given.on_holder_close == "fast":
        raise ValueError('quarantine= is for on_holder_close="safe": "fast" waits for nothing')
    if given.quarantine and not given.armed and not given.fair:
        raise ValueError(
            "quarantine= needs armed=True: a permit that can't report to its holder would retire "
            "without its holder's knowledge"
        )


def _check_for_mode(given: Semaphore, asked: Mapping[str, Any], found: AcquireOptions) -> None:
    """Options of one mode that the other does not have."""
    if given.fair:
        for name in ("backoff", "max_backoff"):
            if asked.get(name) is not None:
                raise ValueError(f"{name}= is for slot mode: a broker notifies its waiters")
    elif found.units != 1 or found.priority:
        raise ValueError(
            "units= and priority= need fair=True: without a broker a permit is one slot"
        )


class Lock(Semaphore):
    """At most one workflow at a time holds it. It is a `Semaphore` with one slot, "0".

    Without `fair`, a `Lock` and a `Semaphore` of one name exclude each other.
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
