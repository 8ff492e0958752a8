"""The ring of events, and their shape."""

from hypothesis import given
from hypothesis import strategies as st

from dibs.server.observatory.events import Event, shape
from dibs.server.observatory.observatory import Ring


def event(name: bytes = b"x") -> Event:
    return Event("granted", b"lock:" + name, 1.0)


@given(total=st.integers(0, 30), at=st.integers(-5, 40), most=st.integers(1, 12))
def test_whoever_was_away_goes_on_or_learns_that_it_cant(total: int, at: int, most: int) -> None:
    ring = Ring(10)
    for number in range(1, total + 1):
        ring.add(event(b"%d" % number))
    assert ring.last == total
    assert ring.has_after(at) == (max(total - 10, 0) <= at <= total)
    if ring.has_after(at):
        numbers = [int(each.name) for each in ring.after(at, most)]
        assert numbers == list(range(at + 1, total + 1))[:most]


def test_an_events_shape() -> None:
    told = shape(Event("left", b"lock:\xff", 1.23456, owner="me", waited=2.0))
    assert told == {
        "at": 1.235,
        "what": "left",
        "kind": "lock",
        "name": "_w",
        "lease": "",
        "owner": "me",
        "note": "",
        "token": 0,
        "units": 1,
        "slots": [],
        "reason": "",
        "found": False,
        "waited": 2.0,
    }
