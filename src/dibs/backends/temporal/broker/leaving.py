"""When a broker's run ends for the next: when all it knows fits, and how long others wait for that."""

from temporalio import workflow

from dibs.backends.temporal.broker.backlog import Backlog
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.broker.growth import outgrown
from dibs.backends.temporal.broker.parts import size_of
from dibs.backends.temporal.broker.post import Post
from dibs.backends.temporal.broker.room import MESSAGE


class Leaving:
    """A run that is to end sends nothing, since it must hear what becomes of it. But not for long.

    It can't end amid a call, and where calls overlap there may always be one.
    """

    LONGEST = 2.0
    """So long at a time those wait who are to be told something."""

    def __init__(self, desk: Desk, post: Post, backlog: Backlog) -> None:
        self._desk = desk
        self._post = post
        self._backlog = backlog
        self._until = 0.0
        """When it gives up for this time; 0 while it keeps nobody waiting."""

    def is_due(self, events: int, calls: int, most_calls: int) -> bool:
        """It is time for the next run, and what this one knows fits into a message for it."""
        if not outgrown(events, calls, most_calls):
            return False
        # else it goes on as before: letters are applied and answers sent, until it fits
        more = self._backlog.size + self._post.size()
        if not self._fits(more):
            return False
        more += size_of(self._desk.owners())
        return self._fits(more)

    def _fits(self, more: int) -> bool:
        room = self._desk.room
        return room.size + more < MESSAGE or room.measured() + more < MESSAGE

    def pauses(self, leaves: bool) -> bool:
        """Whether nothing more is to be begun, as the run is about to end."""
        if not leaves:
            self._until = 0.0
        elif self._until:
            if workflow.time() >= self._until:
                self._until = 0.0
                return False
        elif self._backlog or not self._post.empty:
            self._until = workflow.time() + self.LONGEST
        return leaves

    def due(self) -> float | None:
        """When it gives up for this time."""
        return self._until or None
