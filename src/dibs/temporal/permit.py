"""A permit in workflow code, in slot mode or fair mode, and the block that holds it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

from dibs.config import Duration, seconds
from dibs.locks.messages import format_duration
from dibs.stores.temporal.wire import too_new
from dibs.temporal.errors import Misused, NotHolding, PermitLost


async def settle(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Wait until the task is done. Returns the last cancellation meanwhile, for the caller to raise."""
    cancelled = None
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def to_its_end[T](what: Coroutine[Any, Any, T]) -> T:
    """Await it and return its result. A cancellation meanwhile is raised afterwards, not into it."""
    task = asyncio.create_task(what)
    cancelled = await settle(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


FORMAT = 1


@dataclass
class Handoff:
    """A detached permit. A workflow's argument can be declared as `Handoff` or as `dict`."""

    resource: str
    slots: list[str]
    run_id: str
    """Of the permit; in fair mode its lease's fingerprint."""
    token: int | None
    ttl: float
    acquired_at: float
    until: float
    """When `max_hold` ends, in seconds since 1970."""
    renews: bool
    mode: str = "slot"
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    format: int = FORMAT

    @classmethod
    def of(cls, given: "Handoff | Mapping[str, Any]") -> "Handoff":
        """Read a handoff. Raises `Misused` for other values, or one of a later release."""
        if isinstance(given, Mapping):
            known = {each.name for each in fields(cls)}
            try:
                given = cls(**{name: value for name, value in given.items() if name in known})
            except TypeError as error:
                raise Misused(f"reattach() takes what detach() gave: {error}") from error
        if not isinstance(given, Handoff):
            raise Misused(f"reattach() takes what detach() gave, not {given!r}")
        newer = too_new("this handoff", given.format, "the worker of this workflow", FORMAT)
        if newer:
            raise Misused(newer)
        return given


def may_run_on(error: BaseException | None) -> bool:
    """Whether a body that ended with this error may have left an activity running.

    Any error can result from a cancellation or a timeout: an `ActivityError`, Python's `TimeoutError`, a
    task group's `ExceptionGroup`, or one that the body raised instead.
    """
    return error is not None and not isinstance(error, (Misused, workflow.ContinueAsNewError))


class Permit(str, ABC):
    """A slot of a resource, held by this workflow. `acquire()` returns it.

    It is also the name of its slot, a `str` that you can pass to activities; of several slots, the first.
    Leaving the block or `release()` ends it. `detach()` keeps it for the next run. `lost` is true once it
    has ended otherwise, or its deadline has passed. All times are the workflow's.
    """

    def __init__(
        self,
        *,
        resource: str,
        slots: tuple[str, ...],
        run_id: str,
        token: int | None,
        ttl: float,
        deadline: float,
        acquired_at: float | None = None,
    ) -> None:
        self._resource = resource
        self._slots = slots
        self._run_id = run_id
        self._token = token
        self._ttl = ttl
        self._deadline = deadline
        self._acquired_at = workflow.time() if acquired_at is None else acquired_at
        self._reason = ""
        self._detail = ""
        self._over = ""
        self._on_lost: Callable[[], None] | None = None

    @property
    def resource(self) -> str:
        """The resource's name."""
        return self._resource

    @property
    def slot(self) -> str:
        """The slot's name: "0" to "N-1". Of several, the first."""
        return self._slots[0]

    @property
    def slot_index(self) -> int:
        """The slot as a number."""
        return int(self.slot)

    @property
    def slots(self) -> tuple[str, ...]:
        """All its slots. More than one only with `units=` of a fair semaphore."""
        return self._slots

    @property
    def run_id(self) -> str:
        """The run ID of the permit's workflow. In fair mode the fingerprint of its lease."""
        return self._run_id

    @property
    def token(self) -> int | None:
        """The fencing token. It rises with every permit of a slot. None without `armed`."""
        return self._token

    @property
    def ttl(self) -> float:
        """How long it lasts without a renewal, in seconds."""
        return self._ttl

    @property
    def deadline(self) -> datetime:
        """Time at which the holder must stop, unless it is renewed."""
        return datetime.fromtimestamp(self._deadline, UTC)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline. 0 once it is lost or over."""
        if self._over or self._reason:
            return 0.0
        return max(self._deadline - workflow.time(), 0.0)

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given up."""
        return bool(self._reason) or (not self._over and workflow.time() >= self._deadline)

    @property
    def reason(self) -> str | None:
        """Why it was lost: `expired`, `max_hold`, `revoked` or `closed`. None if it was not lost."""
        return self._reason or (self._ran_out() if self.lost else None)

    def ensure(self, needs: Duration = 0.0) -> None:
        """Raise `LeaseLost` unless `needs` seconds are left, or `NotHeld` if it was given up.

        If it only has too little time left, it is not lost yet, and you can still renew it.
        """
        if self._over:
            raise NotHolding(f"this permit on {self._named()} was {self._over}")
        if self.lost:
            raise self._loss()
        needed = seconds(needs, "needs")
        if self.remaining < needed:
            raise PermitLost(
                f"the permit on {self._named()} has {format_duration(self.remaining)} left, and "
                f"{format_duration(needed)} are needed: renew it first, or take a longer ttl",
                reason="expired",
            )

    @abstractmethod
    async def renew(self, ttl: Duration | None = None) -> None:
        """Let it last for `ttl` seconds from now, or as many as it was acquired with.

        Raises `LeaseLost` if it has ended, `NotHeld` if it was given up.
        """

    @abstractmethod
    async def release(self) -> bool:
        """Give it up. Returns whether it was held until then. The second time does nothing.

        A cancellation meanwhile is raised after the release.
        """

    @abstractmethod
    async def detach(self) -> Handoff:
        """Keep it for the next run. Pass the result to that run, for `reattach()`.

        Raises `LeaseLost` if it has ended, `NotHeld` if it was given up.
        """

    def __str__(self) -> str:
        """The slot's name."""
        return self.slot

    def __repr__(self) -> str:
        state = f"lost: {self.reason}" if self.lost else self._over or "held"
        return f"<Permit {self._named()}, {state}>"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy is only the slot's name, as in a dataclass that becomes an argument."""
        return str, (self.slot,)

    def __int__(self) -> int:
        return self.slot_index

    def _named(self) -> str:
        return f"{self._resource}:{','.join(self._slots)}"

    async def _leave(self, error: BaseException | None) -> None:
        """Give it up, because its block has ended, with this error."""
        await self.release()

    def _lose(self, reason: str, detail: str = "") -> None:
        """Note that it has ended, and cancel the body of its block."""
        if not self._over and not self._reason:
            self._reason = reason
            self._detail = detail
            if self._on_lost is not None:
                self._on_lost()

    def _loss(self) -> PermitLost:
        held = workflow.time() - self._acquired_at
        token = "" if self._token is None else f" (token {self._token})"
        return PermitLost(
            f"the permit on {self._named()}{token}, held for {format_duration(held)}, was lost: "
            f"{self._why()}",
            reason=self.reason or "expired",
        )

    def _ran_out(self) -> str:
        """The reason of the loss if its deadline has passed."""
        return "expired"

    def _why(self) -> str:
        """The reason of the loss, for people."""
        reason = self.reason or "expired"
        why = _WHY.get(reason, reason)
        return f"{why} ({self._detail})" if self._detail else why

    def _still(self, what: str) -> None:
        """Raise unless it is held."""
        if self._over:
            raise NotHolding(f"can't {what}: this permit on {self._named()} was {self._over}")
        if self.lost:
            raise self._loss()


_WHY = {
    "expired": "no renewal came in time",
    "max_hold": "it was held for as long as max_hold allows",
    "revoked": "it was revoked",
    "closed": "it was ended from outside",
}


class PermitBlock:
    """Result of `acquire()`: enter it with `async with`, or await it and release the permit yourself.

    A lost permit cancels the body, and leaving the block raises `LeaseLost`. That never hides the body's
    own exception, and never swallows another cancellation.
    """

    def __init__(self, obtain: Callable[[], Awaitable[Permit]]) -> None:
        self._obtain = obtain
        self._entered: list[tuple[Permit, BodyGuard]] = []

    def __await__(self) -> Generator[Any, Any, Permit]:
        return self._obtain().__await__()

    async def __aenter__(self) -> Permit:
        permit = await self._obtain()
        guard = BodyGuard()
        guard.enter()
        permit._on_lost = guard.fire
        if permit.lost:
            guard.fire()
        self._entered.append((permit, guard))
        return permit

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, GeneratorExit):  # the worker drops this run from its cache
            return
        permit, guard = self._entered.pop()
        permit._on_lost = None
        loss = permit._loss() if permit.lost else None
        silent, cancelled = False, None
        try:
            silent = await guard.leave(error)
        except asyncio.CancelledError as another:
            cancelled = another
        try:
            await permit._leave(error)
        except asyncio.CancelledError as another:
            cancelled = another
        if cancelled is not None and (error is None or is_cancelled_exception(error)):
            raise cancelled
        if loss is None:
            return
        if silent:
            raise loss from (None if isinstance(error, asyncio.CancelledError) else error)
        if error is not None:
            error.add_note(str(loss))


class BodyGuard:
    """Cancels the task that entered, once, and tells its own cancellation from others on leaving.

    While a task waits for an activity or a child, Temporal replaces a cancellation by an error of its own.
    So the task's count of cancellations says less here than in plain asyncio.
    """

    __slots__ = ("_at_entry", "_fired", "_task", "_workflow_was_cancelled")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._at_entry = 0
        self._fired = False
        self._workflow_was_cancelled = False

    def enter(self) -> None:
        """Guard the current task."""
        task = asyncio.current_task()
        self._at_entry = task.cancelling() if task is not None else 0
        self._task = task
        self._workflow_was_cancelled = _is_cancelled()

    def fire(self) -> None:
        """Cancel the body. Only the first call counts."""
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel("the permit was lost")

    async def leave(self, error: BaseException | None) -> bool:
        """Whether the body ended by our cancellation, or without an error.

        Raises `CancelledError` if another cancellation came together with ours, and was not delivered.
        """
        task, self._task = self._task, None
        if task is None or not self._fired:
            return error is None
        caught = False
        if task.cancelling() > self._at_entry:
            try:
                await asyncio.sleep(0)  # a cancellation that the body no longer received
            except asyncio.CancelledError:
                caught = True
            task.uncancel()
        others = task.cancelling() > self._at_entry or (
            _is_cancelled() and not self._workflow_was_cancelled
        )
        if others and caught and error is None:
            raise asyncio.CancelledError
        return error is None or (is_cancelled_exception(error) and not others)


def _is_cancelled() -> bool:
    """Whether a cancellation of this workflow was requested."""
    return workflow.cancellation_reason() is not None
