"""What a history means once it is known who died, and whose hold an operator ended.

All of it errs towards shorter holds: whatever is then found to overlap really did.
"""

from collections.abc import Iterable, Iterator
from math import inf

from dibs.testing.history import Event, merge
from tests.temporal.torture.marks import AGAIN, CLEARED, KILLED


def with_ends(events: Iterable[Event]) -> list[Event]:
    """Put an end to what the dead were doing, and to holds that an operator ended."""
    events = merge(events)
    ends = _Ends(events)
    return merge(each for event in events for each in ends.follow(event))


class _Ends:
    def __init__(self, events: Iterable[Event]) -> None:
        self._open: dict[str, Event] = {}
        """By lease: its grant, with the process that worked under it last."""
        self._known: dict[str, Event] = {}
        self._died = {event.process: event.at for event in events if event.resource == KILLED}
        self._cleared: list[Event] = []

    def follow(self, event: Event) -> Iterator[Event]:
        """The event, and the ends of holds that it means."""
        yield event
        match event.what:
            case "granted":
                yield from self._begin(event)
            case "renewed" if event.lease in self._open:
                grant = self._open[event.lease]
                self._open[event.lease] = grant._replace(process=event.process)
            case "renewed" if event.lease in self._known:
                again = self._known[event.lease]._replace(
                    at=event.at,
                    until=event.until,
                    process=event.process,
                    invoked=-inf,
                    resource=AGAIN,
                )
                yield again
                yield from self._begin(again)
            case "releasing":
                self._open.pop(event.lease, None)
            case "disturbed" if event.resource == KILLED:
                for lease, grant in list(self._open.items()):
                    if grant.process == event.process:
                        yield self._end(lease, event.at)
            case "disturbed" if event.resource == CLEARED:
                self._cleared.append(event)
                for lease, grant in list(self._open.items()):
                    if _clears(event, grant):
                        yield self._end(lease, event.at)
            case _:
                pass

    def _begin(self, grant: Event) -> Iterator[Event]:
        """What the dead have yet to say, or one who has not heard of its end, begins no hold."""
        self._open[grant.lease] = self._known[grant.lease] = grant
        dead = self._died.get(grant.process, inf)
        if dead <= grant.at or any(_clears(mark, grant) for mark in self._cleared):
            yield self._end(grant.lease, grant.at)

    def _end(self, lease: str, at: float) -> Event:
        grant = self._open.pop(lease)
        return Event(at, "releasing", grant.key, lease, grant.token, process=grant.process)


def _clears(mark: Event, grant: Event) -> bool:
    return (
        mark.key == grant.key
        and grant.token <= mark.token
        and (not mark.slots or bool(set(mark.slots) & set(grant.slots)))
    )
