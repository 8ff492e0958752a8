"""The log of events, and their JSON."""

from hypothesis import given
from hypothesis import strategies as st

from dibs.server.lock_events import LockEvent, event_json
from tests.server.inside import event_log


def event(name: bytes = b"x") -> LockEvent:
    return LockEvent("granted", b"lock:" + name, 1.0)


@given(total=st.integers(0, 30), at=st.integers(-5, 40), most=st.integers(1, 12))
def test_whoever_was_away_goes_on_or_learns_that_it_cant(total: int, at: int, most: int) -> None:
    log = event_log(10)
    for number in range(1, total + 1):
        log.add(event(b"%d" % number))
    assert log.last == total
    assert log.has_after(at) == (max(total - 10, 0) <= at <= total)
    if log.has_after(at):
        numbers = [int(each.name) for each in log.after(at, most)]
        assert numbers == list(range(at + 1, total + 1))[:most]


def test_an_events_shape() -> None:
    told = event_json(LockEvent("left", b"lock:\xff", 1.23456, owner="me", waited=2.0))
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
