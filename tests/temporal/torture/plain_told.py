"""What befell plain programs, as a history tells it."""

from collections import Counter
from collections.abc import Iterable

from dibs.testing.history import Event
from tests.temporal.torture.marks import KILLED, LOST

KILLED_HOLDING, KILLED_WAITING = "killed while holding", "killed while waiting"


def befell(events: Iterable[Event]) -> Counter[str]:
    """How their turns ended. `events` are in the order of time."""
    told = Counter[str]()
    waiting: Counter[tuple[int, str]] = Counter()
    held: dict[str, int] = {}
    for event in events:
        caller = event.process, event.key
        match event.what:
            case "asked" if event.resource == LOST:
                told[f"lost ({event.lease})"] += 1
            case "asked" if not event.resource:
                waiting[caller] += 1
            case "gave_up":
                waiting[caller] -= 1
                told["gave up"] += 1
            case "granted" if waiting[caller]:
                waiting[caller] -= 1
                held[event.lease] = event.process
            case "releasing" if event.lease in held:
                told["released"] += 1
                del held[event.lease]
            case "disturbed" if event.resource == KILLED:
                told[KILLED_HOLDING] += _forget(event.process, held)
                told[KILLED_WAITING] += sum(
                    many for (process, _), many in waiting.items() if process == event.process
                )
            case _:
                pass
    return +told


def _forget(process: int, held: dict[str, int]) -> int:
    """How many it held."""
    of_it = [lease for lease, holder in held.items() if holder == process]
    for lease in of_it:
        del held[lease]
    return len(of_it)
