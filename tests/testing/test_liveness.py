"""Waiting too long for something free is found; waiting for a good reason is not."""

from dibs.testing import HistoryEvent, check_liveness, merge

KEY = "lock:a"


def granted(at: float, lease: str, *, invoked: float, until: float) -> HistoryEvent:
    return HistoryEvent(at, "granted", KEY, lease, int(at * 1000), invoked, until)


def gave_up(at: float, *, invoked: float) -> HistoryEvent:
    return HistoryEvent(at, "gave_up", KEY, invoked=invoked)


def starved(*events: HistoryEvent, window: float = 0.0) -> int:
    return len(check_liveness(merge(events), bound=3, window=window))


def test_served_in_time() -> None:
    first = granted(1, "a", invoked=0, until=10)
    assert not starved(first, granted(12.9, "b", invoked=2, until=20))


def test_served_too_late_after_the_deadline() -> None:
    first = granted(1, "a", invoked=0, until=10)
    assert starved(first, granted(13.1, "b", invoked=2, until=20)) == 1


def test_served_too_late_after_a_release() -> None:
    first = granted(1, "a", invoked=0, until=10)
    freed = HistoryEvent(2, "releasing", KEY, "a")
    assert starved(first, freed, granted(5.1, "b", invoked=1, until=20)) == 1


def test_waiting_begins_with_the_question() -> None:
    first = granted(1, "a", invoked=0, until=2)
    assert not starved(first, granted(50, "b", invoked=49, until=60))


def test_a_kill_on_the_way_begins_the_time_anew() -> None:
    first = granted(1, "a", invoked=0, until=10)
    killed = HistoryEvent(12, "disturbed", process=7)
    assert not starved(first, killed, granted(14.9, "b", invoked=2, until=20))
    assert starved(first, killed, granted(15.1, "b", invoked=2, until=20)) == 1


def test_each_who_was_killed_in_line_may_take_a_window() -> None:
    first = granted(1, "a", invoked=0, until=10)
    killed = [HistoryEvent(at, "asked", KEY, process=7) for at in (2.0, 2.1)]
    alive = HistoryEvent(2.5, "asked", KEY)
    late = granted(15, "b", invoked=2.5, until=20)
    assert starved(first, *killed, alive, late, window=1) == 0
    assert starved(first, *killed, alive, late._replace(at=15.1), window=1) == 1
    assert starved(first, *killed, alive, late) == 1


def test_who_was_passed_in_line_takes_nothing_any_more() -> None:
    killed = HistoryEvent(0.5, "asked", KEY, process=7)
    younger = granted(2, "a", invoked=1, until=3)
    late = granted(6.5, "b", invoked=2, until=20)
    assert starved(killed, younger, late, window=1) == 1


def test_who_ended_in_any_way_was_not_killed() -> None:
    first = granted(1, "a", invoked=0, until=10)
    ended = [
        HistoryEvent(2, "asked", KEY, process=7),
        HistoryEvent(3, "gave_up", KEY, invoked=2, process=7),
        HistoryEvent(2.1, "asked", KEY, process=7, resource="told apart"),
    ]
    assert starved(first, *ended, granted(13.5, "b", invoked=2, until=20), window=1) == 1


def test_giving_up_on_a_free_key() -> None:
    assert starved(gave_up(5, invoked=0)) == 1
    assert not starved(granted(1, "a", invoked=0, until=4), gave_up(5, invoked=0))


def test_a_key_with_many_slots_is_free_when_nobody_has_any() -> None:
    first = granted(1, "a", invoked=0, until=10)._replace(capacity=2)
    late = granted(20, "b", invoked=2, until=30)._replace(capacity=2)
    assert starved(first, late) == 1
    other = granted(3, "c", invoked=2, until=17.5)._replace(capacity=2)
    assert not starved(first, late, other), "it may have waited for both"


def test_a_call_for_several_waits_for_the_last_of_them() -> None:
    """They are granted at one time, and were asked for at one time."""
    here = granted(9, "a", invoked=0, until=20)
    there = here._replace(key="lock:b", lease="b", token=1)
    assert starved(here, there) == 1
    held = granted(1, "c", invoked=0.5, until=7)._replace(key="lock:b")
    assert not starved(held, here, there)
    late = [each._replace(at=10.1) for each in (here, there)]
    assert starved(held, *late) == 1


def refused(at: float) -> HistoryEvent:
    return HistoryEvent(at, "refused", KEY, invoked=at - 0.1)


def test_a_try_that_is_refused_though_nobody_has_held_it_for_long() -> None:
    first = granted(1, "a", invoked=0, until=10)
    freed = HistoryEvent(2, "releasing", KEY, "a")
    assert not starved(first, freed, refused(4.9))
    assert starved(first, freed, refused(5.1)) == 1
    assert not starved(first, refused(12.9))
    assert starved(first, refused(13.1)) == 1


def test_a_try_that_is_refused_while_the_key_is_kept_closed() -> None:
    first = granted(1, "a", invoked=0, until=10)._replace(min_hold=6)
    freed = HistoryEvent(2, "releasing", KEY, "a")
    assert not starved(first, freed, refused(9.9))
    assert starved(first, freed, refused(10.1)) == 1


def test_who_died_before_it_could_tell_is_waited_for() -> None:
    first, killed = refused(1), HistoryEvent(5, "disturbed", process=7)
    assert starved(first, refused(4.1)) == 1
    assert not starved(first, killed, refused(7.9))
