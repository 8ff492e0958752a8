"""From events to holds: during which times who held what, as each holder itself believed."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dibs.testing.history import Event


@dataclass(slots=True)
class Hold:
    """Units that one lease had from `start` to `end`.

    It begins when the call returned and ends at the latest known deadline, or when its release was
    sent. Both err towards a shorter hold, so holds that overlap really did.
    """

    grant: Event
    start: float
    end: float
    units: int
    slots: tuple[int, ...]

    def __str__(self) -> str:
        return f"held {self.start:.6f}..{self.end:.6f} by [{self.grant}]"


class Holds:
    """All holds and grants of a history, by key."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.by_key: defaultdict[str, list[Hold]] = defaultdict(list)
        self.grants: defaultdict[str, list[Event]] = defaultdict(list)
        self._current: dict[str, Hold] = {}
        steps = {
            "granted": self._granted,
            "renewed": self._renewed,
            "believed": self._believed,
            "releasing": self._releasing,
            "resized": self._resized,
            "shrinking": self._resized,
        }
        for event in events:
            step = steps.get(event.what)
            if step is not None:
                step(event)

    def _granted(self, event: Event) -> None:
        self.grants[event.key].append(event)
        self._begin(event, event.at, event.until)

    def _begin(self, event: Event, start: float, end: float) -> None:
        hold = Hold(event, start, end, event.units, event.slots)
        self._current[event.lease] = hold
        self.by_key[event.key].append(hold)

    def _renewed(self, event: Event) -> None:
        hold = self._current.get(event.lease)
        if hold is not None and event.until > hold.end:
            hold.end = event.until

    def _believed(self, event: Event) -> None:
        hold = self._current.get(event.lease)
        if hold is not None and event.at > hold.end:
            hold.end = event.at

    def _releasing(self, event: Event) -> None:
        hold = self._current.pop(event.lease, None)
        if hold is not None and event.at < hold.end:
            hold.end = event.at

    def _resized(self, event: Event) -> None:
        """More units count from the answer on, fewer from the question on."""
        hold = self._current.get(event.lease)
        if hold is None:
            return
        grows = event.units > hold.units
        if grows:
            self.grants[event.key].append(event)
        asked = event.at if event.what == "shrinking" else event.invoked
        change = event.at if grows else max(asked, hold.start)
        end, hold.end = hold.end, min(hold.end, change)
        self._begin(event, change, end)
