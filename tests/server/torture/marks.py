"""What clients write down besides what any history has: events that are told apart by `resource`."""

from dibs.testing.history import HistoryEvent as Event

STILL_HELD = "still held"
"""A release was acknowledged, and a look that began later found the hold it was for."""


def still_held(at: float, key: bytes, token: int, process: int) -> Event:
    return Event(at, "asked", key.decode(), token=token, process=process, resource=STILL_HELD)
