"""A permit that is held by a workflow, whoever granted it: the slot itself, or a broker."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime

from temporalio import workflow

from dibs.config import Duration, seconds
from dibs.primitives.messages import span
from dibs.temporal.failures import NotHolding, PermitLost
from dibs.temporal.permits.handoff import Handoff


class Permit(str, ABC):
    """A slot of a resource, held. Made by `acquire()` only; times are the workflow's own.

    It is also the name of its slot, a `str` that activities can be given. Of several slots, the first.

    It ends with `release()`, which leaving the block does as well; by `detach()` it stays and may be
    taken up by the next run. `lost` is true once it has ended otherwise, or its deadline has passed.
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
        """What it is a permit for."""
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
        """All slots it holds; more than one only with `units=` of a fair semaphore."""
        return self._slots

    @property
    def run_id(self) -> str:
        """The run ID of the workflow that is the permit; of a broker's grant, its lease's fingerprint."""
        return self._run_id

    @property
    def token(self) -> int | None:
        """The fencing token: of each slot it grows with every permit. None without `armed`."""
        return self._token

    @property
    def ttl(self) -> float:
        """How long it stands without a renewal, in seconds."""
        return self._ttl

    @property
    def deadline(self) -> datetime:
        """Until when it can be relied on, as it stands now."""
        return datetime.fromtimestamp(self._deadline, UTC)

    @property
    def remaining(self) -> float:
        """So many seconds it can be relied on, as it stands now; 0 once it is lost or over."""
        if self._over or self._reason:
            return 0.0
        return max(self._deadline - workflow.time(), 0.0)

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given up."""
        return bool(self._reason) or (not self._over and workflow.time() >= self._deadline)

    @property
    def reason(self) -> str | None:
        """Why it was lost: `expired`, `max_hold`, `revoked` or `closed`; None unless it was."""
        return self._reason or (self._ran_out() if self.lost else None)

    def ensure(self, needs: Duration = 0.0) -> None:
        """Raises `LeaseLost` unless it is held for `needs` seconds yet; `NotHeld` if it was given up.

        Too little time left is no loss yet: who catches that may still renew it.
        """
        if self._over:
            raise NotHolding(f"this permit on {self._named()} was {self._over}")
        if self.lost:
            raise self._loss()
        needed = seconds(needs, "needs")
        if self.remaining < needed:
            raise PermitLost(
                f"the permit on {self._named()} has {span(self.remaining)} left, and {span(needed)} are "
                "needed: renew it first, or take a longer ttl",
                reason="expired",
            )

    @abstractmethod
    async def renew(self, ttl: Duration | None = None) -> None:
        """Let it stand for `ttl` seconds from now, or as many as it was acquired with.

        Raises `LeaseLost` if it has ended, `NotHeld` if it was given up.
        """

    @abstractmethod
    async def release(self) -> bool:
        """Give it up; whether it was held until then. The second time does nothing.

        A cancellation meanwhile is raised once the release is done.
        """

    @abstractmethod
    async def detach(self) -> Handoff:
        """Keep it, but not in this run: what is returned goes to the next one, for `reattach`."""

    def __str__(self) -> str:
        """The slot, as the habit of `async with ... as slot` wants it."""
        return self.slot

    def __repr__(self) -> str:
        state = f"lost: {self.reason}" if self.lost else self._over or "held"
        return f"<Permit {self._named()}, {state}>"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy is only the name, as in a dataclass that becomes an argument."""
        return str, (self.slot,)

    def __int__(self) -> int:
        return self.slot_index

    def _named(self) -> str:
        return f"{self._resource}:{','.join(self._slots)}"

    async def _leave(self, error: BaseException | None) -> None:
        """Its block has ended, with that; give it up."""
        await self.release()

    def _lose(self, reason: str, detail: str = "") -> None:
        """It has ended; whoever is in its block is cancelled."""
        if not self._over and not self._reason:
            self._reason = reason
            self._detail = detail
            if self._on_lost is not None:
                self._on_lost()

    def _loss(self) -> PermitLost:
        held = workflow.time() - self._acquired_at
        token = "" if self._token is None else f" (token {self._token})"
        return PermitLost(
            f"the permit on {self._named()}{token}, held for {span(held)}, was lost: {self._why()}",
            reason=self.reason or "expired",
        )

    def _ran_out(self) -> str:
        """Why it is over that its deadline has passed."""
        return "expired"

    def _why(self) -> str:
        """Why it was lost, for people."""
        reason = self.reason or "expired"
        why = _WHY.get(reason, reason)
        return f"{why} ({self._detail})" if self._detail else why

    def _still(self, what: str) -> None:
        """Raises unless it is held."""
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
