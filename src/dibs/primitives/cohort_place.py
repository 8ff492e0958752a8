"""A place in the store's queue that a cohort shares: whoever leaves it can leave it to another."""

from math import inf

from dibs.model import Granted
from dibs.primitives.acquire import Acquiring
from dibs.primitives.ask import Ask, Grant
from dibs.primitives.watching import OnWait
from dibs.runtime.port import Runtime


class TimeIsUp(Exception):
    """Whoever stands in a place has waited for as long as it wanted to; the place is still there."""


class SharedPlace(Acquiring):
    """One id's way to a grant, on which one member of a cohort may stand after the other."""

    __slots__ = ("__weakref__", "granted")

    def __init__(self, rt: Runtime, ask: Ask) -> None:
        super().__init__(rt, ask)
        self.granted = False
        """The store has answered with a grant: nobody else may stand here any more."""

    @property
    def ahead(self) -> int | None:
        """How many were before it in the store's queue, when it was last told."""
        return self._ahead

    @property
    def _stands(self) -> bool:
        """It has not been given up."""
        return not self._over

    async def stand(self, wait: float | None, until: float, on_wait: OnWait | None = None) -> Grant:
        """Wait here for a grant. Raises `TimeIsUp`; with `wait` 0 it is one try.

        Whoever stood here before may have left while it was being answered, so the store is asked
        again: the same id is granted once.
        """
        self._doubtful = self._doubtful or self._in_flight
        self._on_wait = on_wait
        try:
            answer = await self._send(queue=wait != 0, until=until, bounded=wait is not None)
            if wait == 0 and not isinstance(answer.reply, Granted):
                return self._refused(answer.reply)
            grant = await self._in_turn(wait, until, answer)
            self.granted = True
            return grant
        finally:
            self._stop_waiting()
            self._queued = self._lookout = None  # who stands here next looks out for itself
            self._since, self._due_at = None, inf

    async def _withdraw(self, wait: float | None) -> None:
        raise TimeIsUp  # who comes next decides what becomes of the place

    async def _leave_queue(self) -> None:
        """As above."""

    async def withdraw(self) -> None:
        """Leave the queue: nobody wants the place any more."""
        try:
            await super()._leave_queue()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give it up in the background."""
        if not self._over:
            self._over = True
            self._rt.keeper.abandon(self._ask.key, self._id, self._burial())
