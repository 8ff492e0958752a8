"""What clients write down besides what any history has: events that are told apart by `resource`."""

from leasehold.testing.history import Event

IN_LINE = "in line"
"""Of a call that began at `invoked`: the store has said how many are ahead of it."""
STILL_HELD = "still held"
"""A release was acknowledged, and a look that began later found the hold it was for."""


def in_line(at: float, key: bytes, invoked: float, process: int) -> Event:
    return Event(at, "asked", key.decode(), invoked=invoked, process=process, resource=IN_LINE)


def still_held(at: float, key: bytes, token: int, process: int) -> Event:
    return Event(at, "asked", key.decode(), token=token, process=process, resource=STILL_HELD)
