"""Which permits of a sharing broker stand for sure, and which slots are closed as long as theirs don't."""

from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet

from dibs.backends.temporal.broker.claims.slots import MARK
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.protocol.bounds import MOST_SLOTS
from dibs.core.book import Hold
from dibs.model import Acquire, Command, Release, Resize, Revoke


class Standing:
    """What this run knows of its permits' ends. A run before it may have known more: that is over."""

    FRESH = 1.0
    """So long one stands that nobody would tell us the end of, after we have heard that it does."""
    LATE = 10.0
    """What was sent before is no news: no worker was there to hear how it went."""
    MARGIN = 1 / 60
    """Of a permit's lease: what is granted now extends it only once this workflow task is over."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        """When each ends at the earliest, unless somebody ends it, by the server's time."""
        self._heard: dict[int, float] = {}

    def start(self, slot: int, until: float) -> None:
        """It has been started, and stands so long."""
        self._until[slot] = until

    def hear(self, slot: int, sent: float, lease: float, now: float) -> None:
        """An extension that was sent then has reached it."""
        self._until[slot] = max(self._until.get(slot, 0.0), sent + lease)
        if now < sent + self.LATE:
            self._heard[slot] = now + self.FRESH

    def forget(self, slot: int) -> None:
        """It is ours no more."""
        self._until.pop(slot, None)
        self._heard.pop(slot, None)

    def sure(
        self, slots: Iterable[int], watched: Container[int], lease: float, now: float
    ) -> set[int]:
        """Those that stand now, and a little longer."""
        least = now + lease * self.MARGIN
        return {
            slot
            for slot in slots
            if self._until.get(slot, 0.0) > least
            and (slot in watched or self._heard.get(slot, 0.0) > now)
        }


def doubtful(
    desk: Desk,
    command: Command | None,
    sure: AbstractSet[int],
    closed: AbstractSet[int],
    now: float,
) -> list[int]:
    """The open slots that the ledger might grant, by this command or by time, on permits that may be gone."""
    limit = min(max(desk.book.capacity, _capacity_of(command, desk, now)), MOST_SLOTS)
    doubted = set(range(limit)) - sure - closed
    return sorted(doubted - staying(desk, command, now)) if doubted else []


def staying(desk: Desk, command: Command | None, now: float) -> set[int]:
    """The slots of holds that neither this command nor time ends."""
    holds = desk.book.holds()
    return {slot for hold in holds if not _may_end(hold, command, now) for slot in hold.slots}


def _may_end(hold: Hold, command: Command | None, now: float) -> bool:
    if hold.expires <= now or isinstance(command, Revoke) or hold.id.startswith(MARK):
        return True
    if isinstance(command, Resize):
        return command.id == hold.id and command.units < hold.units
    return isinstance(command, Release) and command.id == hold.id


def _capacity_of(command: Command | None, desk: Desk, now: float) -> int:
    """What a new id brings; one whose entry has just run out is new as well."""
    if not isinstance(command, Acquire) or not 1 <= command.units <= command.capacity:
        return 0
    known = desk.book.get(command.id)
    return 0 if known is not None and desk.book.expires_at(known) > now else command.capacity
