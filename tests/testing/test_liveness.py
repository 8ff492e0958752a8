"""Waiting too long for something free is found; waiting for a good reason is not."""

from leasehold.testing import Event, check_liveness, merge

KEY = "lock:a"


def granted(at: float, lease: str, *, invoked: float, until: float) -> Event:
    return Event(at, "granted", KEY, lease, int(at * 1000), invoked, until)


def gave_up(at: float, *, invoked: float) -> Event:
    return Event(at, "gave_up", KEY, invoked=invoked)


def starved(*events: Event) -> int:
    return len(check_liveness(merge(events), bound=3))


def test_served_in_time() -> None:
    first = granted(1, "a", invoked=0, until=10)
    assert not starved(first, granted(12.9, "b", invoked=2, until=20))


def test_served_too_late_after_the_deadline() -> None:
    first = granted(1, "a", invoked=0, until=10)
    assert starved(first, granted(13.1, "b", invoked=2, until=20)) == 1


def test_served_too_late_after_a_release() -> None:
    first = granted(1, "a", invoked=0, until=10)
    freed = Event(2, "releasing", KEY, "a")
    assert starved(first, freed, granted(5.1, "b", invoked=1, until=20)) == 1


def test_waiting_begins_with_the_question() -> None:
    first = granted(1, "a", invoked=0, until=2)
    assert not starved(first, granted(50, "b", invoked=49, until=60))


def test_a_kill_on_the_way_begins_the_time_anew() -> None:
    first = granted(1, "a", invoked=0, until=10)
    killed = Event(12, "disturbed", process=7)
    assert not starved(first, killed, granted(14.9, "b", invoked=2, until=20))
    assert starved(first, killed, granted(15.1, "b", invoked=2, until=20)) == 1


def test_giving_up_on_a_free_key() -> None:
    assert starved(gave_up(5, invoked=0)) == 1
    assert not starved(granted(1, "a", invoked=0, until=4), gave_up(5, invoked=0))


def test_a_key_with_many_slots_is_left_out() -> None:
    first = granted(1, "a", invoked=0, until=10)._replace(capacity=2)
    late = granted(20, "b", invoked=2, until=30)._replace(capacity=2)
    assert not starved(first, late)
