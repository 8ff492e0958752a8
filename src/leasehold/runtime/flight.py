"""A batch that the store has launched: it lands in the loop, once, or is given up when it is too late.

The other half of the batcher, whose books it keeps: how many are under way, and who watches over them.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Command, Reply
from leasehold.runtime.halving import Outcome
from leasehold.runtime.port import Answer

if TYPE_CHECKING:
    from leasehold.runtime.batcher import Batcher

type Launch = Callable[
    [Sequence[Command], Callable[[Sequence[Reply] | LeaseholdError], None]],
    Callable[[], None] | None,
]


class Call:
    """A command, and the future that waits for its answer."""

    __slots__ = ("command", "future")

    def __init__(self, command: Command, future: asyncio.Future[Answer]) -> None:
        self.command = command
        self.future = future


class Flight:
    """A batch that the store has launched: it lands in the loop, once."""

    __slots__ = ("_batch", "_batcher", "_commands", "_give_up", "_over", "_sent", "until")

    def __init__(
        self, batcher: "Batcher", batch: list[Call], commands: Sequence[Command], sent: float
    ) -> None:
        self._batcher = batcher
        self._batch = batch
        self._commands = commands
        self._sent = sent
        self._over = False
        self.until = 0.0
        """When it is too late, on the loop's clock."""
        self._give_up: Callable[[], None] = _nothing

    def begin(self, launch: Launch, patience: float) -> bool:
        """Leave, unless the store is not connected."""
        batcher = self._batcher
        batcher._flying += 1
        batcher._aloft += len(self._batch)
        give_up = launch(self._commands, self._land)
        if give_up is None:
            batcher._flying -= 1
            batcher._aloft -= len(self._batch)
            return False
        if not self._over:
            self._give_up = give_up
            self.until = batcher._loop.time() + patience
            batcher._watch_over(self)
        return True

    def too_late(self) -> None:
        """It has been under way for too long."""
        if self._over:
            return  # giving up another one of the same connection has ended this
        self._end([BackendUnavailable("the store did not answer in time")] * len(self._batch))
        self._give_up()

    def _land(self, outcome: Sequence[Reply] | LeaseholdError) -> None:
        if self._over:
            return None
        if not isinstance(outcome, LeaseholdError):
            return self._end(outcome)
        if isinstance(outcome, BackendUnavailable) and len(self._batch) > 1:
            self._end()  # the others of this batch may be well
            self._batcher._fly_by_itself(self._batch, self._commands, self._sent, resent=True)
        else:
            self._end([outcome] * len(self._batch))

    def _end(self, outcomes: Sequence[Outcome] | None = None) -> None:
        self._over = True
        batcher = self._batcher
        batcher._watched.discard(self)
        batcher._down(self._batch)
        if outcomes is not None:
            batcher._land(self._batch, outcomes, self._sent)


def _nothing() -> None:
    """There is nothing to be given up yet."""
