"""Histories survive their writers, and the checkers find each kind of violation in them, and nothing else."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dibs.model import MANY
from dibs.testing import HistoryEvent, Recorder, check, check_liveness, merge, read

KEY = "lock:a"


def granted(at: float, lease: str, token: int, until: float, **more: Any) -> HistoryEvent:
    event = HistoryEvent(at, "granted", KEY, lease, token, invoked=at - 0.5, until=until)
    return event._replace(**more)


def told(at: float, what: Any, lease: str = "", **more: Any) -> HistoryEvent:
    return HistoryEvent(at, what, KEY, lease)._replace(**more)


def of_many(at: float, lease: str, token: int, units: int = 1) -> HistoryEvent:
    """A reader's grant, or a writer's that has all units."""
    return granted(at, lease, token, until=9, capacity=MANY, units=units)


def resized(at: float, lease: str, token: int, units: int) -> HistoryEvent:
    return told(at, "resized", lease, token=token, invoked=3, units=units, capacity=MANY)


def started(at: float, lease: str, token: int, min_hold: float = 3) -> HistoryEvent:
    return granted(at, lease, token, until=at + 1, min_hold=min_hold)


def wrote(at: float, token: int, slots: tuple[int, ...] = ()) -> HistoryEvent:
    return told(at, "wrote", token=token, resource="file", slots=slots)


def of_key(key: str, *events: HistoryEvent) -> list[HistoryEvent]:
    return [event._replace(key=key) for event in events]


A = granted(1, "a", 1, until=5)
LEFT = told(2, "releasing", "a")
TWO = granted(1, "a", 1, until=9, capacity=3, units=2)
SLOTS = TWO._replace(slots=(0, 2))
THREE = [granted(n, f"{n}", int(n), until=9, capacity=3, slots=(n,)) for n in (1.0, 2.0, 3.0)]
LEADER = of_key("leader:main", A, granted(5, "b", 2, until=9))
READERS = [of_many(1, "r", 1), of_many(2, "s", 2)]
SHRINKS = [of_many(1, "w", 1, MANY), told(3, "shrinking", "w", units=1, capacity=MANY)]
STARTED = [started(1, "a", 1), told(1.5, "releasing", "a")]
BOTH = [*of_key("lock:b", granted(1, "ab", 5, 9)), *of_key("lock:c", granted(1, "ac", 5, 9))]

CLEAN = {
    "turns": [A, LEFT, granted(2, "b", 2, until=6), granted(6, "c", 3, until=9)],
    "an answer after its deadline is no hold": [granted(6, "a", 1, 5), granted(6, "b", 2, 9)],
    "nothing counts after the release": [
        *(A, LEFT, told(2.1, "renewed", "a", until=9), told(2.2, "believed", "a")),
        granted(3, "b", 2, until=9),
    ],
    "the capacity is used": THREE,
    "units are weights": [TWO, granted(2, "b", 2, until=9, capacity=3)],
    "slots are apart": [SLOTS, granted(2, "b", 2, until=9, capacity=3, slots=(1,))],
    "holds under a greater capacity run on": [
        *(granted(n, f"{n}", int(n), until=9, capacity=4) for n in (1.0, 2.0, 3.0)),
        granted(9, "d", 9, until=12, capacity=1),
    ],
    "readers": READERS,
    "an upgrade counts from its answer": [
        *(*READERS, told(4, "releasing", "s"), resized(5, "r", 3, MANY)),
    ],
    "a downgrade counts from its question": [
        *(of_many(1, "w", 1, MANY), of_many(4, "s", 2), resized(5, "w", 1, 1)),
    ],
    "who wants less relies on no more, even if it dies before the answer": [
        *(*SHRINKS, of_many(3.1, "r", 2)),
    ],
    "a writer after one that shrank and left": [
        *(*SHRINKS, told(3.5, "releasing", "w"), of_many(4, "v", 2, MANY)),
    ],
    "terms in turn": LEADER,
    "a task that may start again, on a clock that ran fast": [*STARTED, started(3.48, "b", 2)],
    "a task with a short min_hold after a long one": [
        *(started(1, "a", 1, 30), started(40, "b", 2, 1), started(42, "c", 3)),
    ],
    "several at once": [*BOTH, *of_key("lock:c", granted(9, "b", 6, until=12))],
    "calls at the same time may get tokens either way": [
        *(granted(1, "a", 7, until=2), granted(3, "b", 6, until=4, invoked=0.9)),
    ],
    "tokens of writes rise and repeat": [wrote(1, 5), wrote(2, 5), wrote(3, 6)],
    "slots are written each for itself": [wrote(1, 6, (0,)), wrote(2, 5, (1,))],
}

BROKEN = {
    "overlap": ["overlap", A, granted(4.9, "b", 2, until=9)],
    "overlap by a renewal alone": [
        *("overlap", A, told(4, "renewed", "a", until=7), granted(6, "b", 2, until=9)),
    ],
    "overlap by belief alone": [
        *("overlap", A, granted(6, "b", 2, until=9), told(7, "believed", "a")),
    ],
    "one more than the capacity": ["overlap", *THREE, granted(4, "d", 4, until=9, capacity=3)],
    "more units than there are": ["overlap", TWO, TWO._replace(at=2, lease="b", token=2)],
    "a slot twice": ["slot", SLOTS, granted(2, "b", 2, until=9, capacity=3, slots=(2,))],
    "fewer slots than units": ["slot", SLOTS._replace(slots=(2, 2))],
    "more slots than units": ["slot", SLOTS._replace(slots=(0, 1, 2))],
    "a writer beside a reader": ["overlap", of_many(1, "r", 1), of_many(2, "w", 2, MANY)],
    "an upgrade beside a reader": ["overlap", *READERS, resized(5, "r", 3, MANY)],
    "a reader before a downgrade": [
        *("overlap", of_many(1, "w", 1, MANY), of_many(2, "s", 2), resized(5, "w", 1, 1)),
    ],
    "an upgrade with the same token": ["token", of_many(1, "r", 5), resized(5, "r", 5, MANY)],
    "an upgrade with a lower token": ["token", of_many(1, "r", 5), resized(5, "r", 4, MANY)],
    "a reader before a writer shrinks": ["overlap", *SHRINKS, of_many(2.9, "r", 2)],
    "a writer beside one that shrank, and reads still": [
        *("overlap", *SHRINKS, of_many(4, "v", 2, MANY)),
    ],
    "two leaders": [
        *("overlap", *LEADER, *of_key("leader:main", told(4.5, "renewed", "a", until=5.1))),
    ],
    "a task starts too soon": ["too soon", *STARTED, started(3.46, "b", 2)],
    "the longest min_hold counts": [
        *("too soon", started(1, "a", 1, 30), started(20, "c", 2, 0)),
    ],
    "a task is started twice at once": [
        *("overlap too soon", started(1, "a", 1), started(1.5, "b", 2)),
    ],
    "one of several at once": ["overlap", *BOTH, *of_key("lock:c", granted(2, "b", 6, until=9))],
    "a repeated token": ["token", granted(1, "a", 7, until=2), granted(3, "b", 7, until=4)],
    "a stale write": ["stale write", wrote(1, 5), wrote(2, 6), wrote(3, 5)],
    "a stale write to one of two slots": ["stale write", wrote(1, 6, (0, 1)), wrote(2, 5, (1,))],
}


@pytest.mark.parametrize("events", CLEAN.values(), ids=CLEAN)
def test_a_clean_history_has_no_violations(events: list[HistoryEvent]) -> None:
    assert check(merge(events)) == []


@pytest.mark.parametrize("history", BROKEN.values(), ids=BROKEN)
def test_a_violation_is_found(history: list[Any]) -> None:
    rules, *events = history
    assert " ".join(sorted(each.rule for each in check(merge(events)))) == rules


def test_a_report_names_all_holders_and_what_they_are() -> None:
    second = granted(2, "b", 2, until=9)
    (violation,) = check([A, second])
    assert violation.events == (A, second)
    for words in ("2 units held of 1", "lease='a'", "lease='b'"):
        assert words in str(violation)
    (beside,) = check([of_many(1, "r", 1), of_many(2, "w", 2, MANY)])
    assert beside.message.startswith("a writer was not alone: ")
    (led,) = check(of_key("leader:main", A, second))
    assert led.message.startswith("two led: ")


# ---- waiting --------------------------------------------------------------------------------------

BOUND = 3.0
FIRST = granted(1, "a", 1, until=10, invoked=0)
KILLED = told(12, "disturbed", key="", process=7)
IN_LINE = [told(at, "asked", process=7) for at in (2.0, 2.1)]
"""Two of a process that was killed."""
SECOND = [HistoryEvent(9, "granted", key, key, 9, 0, 20) for key in ("lock:a", "lock:b")]
"""Granted at one time, and asked for at one time."""


def served(at: float, *, invoked: float = 2, **more: Any) -> HistoryEvent:
    return granted(at, "b", 2, until=at + 10, invoked=invoked, **more)


def gave_up(at: float, **more: Any) -> HistoryEvent:
    return told(at, "gave_up", **{"invoked": 0, **more})


def refused(at: float) -> HistoryEvent:
    return told(at, "refused", invoked=at - 0.1)


WAITS: dict[str, tuple[list[HistoryEvent], list[HistoryEvent]]] = {
    # what it is about: a history in which all are served in time, and one in which somebody starves
    "after a deadline": ([FIRST, served(12.9)], [FIRST, served(13.1)]),
    "after a release": ([FIRST, LEFT, served(4.9)], [FIRST, LEFT, served(5.1)]),
    "from the question on": (*([FIRST, served(50, invoked=49)], [FIRST, served(53, invoked=49)]),),
    "after a kill": ([FIRST, KILLED, served(14.9)], [FIRST, KILLED, served(15.1)]),
    "until it gives up": (*([granted(1, "a", 1, until=4, invoked=0), gave_up(5)], [gave_up(5)]),),
    "for the last of many slots": (
        [
            *(each._replace(capacity=2) for each in (FIRST, served(20))),
            granted(3, "c", 3, until=17.5, invoked=2, capacity=2),
        ],
        [each._replace(capacity=2) for each in (FIRST, served(20))],
    ),
    "for the last of several keys": (
        [*of_key("lock:b", granted(1, "c", 1, until=7)), *SECOND],
        [*of_key("lock:b", granted(1, "c", 1, until=5)), *SECOND],
    ),
    "a try after a release": ([FIRST, LEFT, refused(4.9)], [FIRST, LEFT, refused(5.1)]),
    "a try after a deadline": ([FIRST, refused(12.9)], [FIRST, refused(13.1)]),
    "a try while a task may not start": (
        [FIRST._replace(min_hold=6), LEFT, refused(9.9)],
        [FIRST._replace(min_hold=6), LEFT, refused(10.1)],
    ),
    "a try after a kill": (
        *([refused(1), KILLED._replace(at=5), refused(7.9)], [refused(1), refused(4.1)]),
    ),
}


@pytest.mark.parametrize(("clean", "starving"), WAITS.values(), ids=WAITS)
def test_who_waits_too_long_for_something_free_is_found(
    clean: list[HistoryEvent], starving: list[HistoryEvent]
) -> None:
    assert check_liveness(merge(clean), BOUND) == []
    assert [each.rule for each in check_liveness(merge(starving), BOUND)] == ["starved"]


@pytest.mark.parametrize(
    ("events", "window", "starves"),
    [
        ([FIRST, *IN_LINE, served(15, invoked=2.5)], 1, False),
        ([FIRST, *IN_LINE, served(15.1, invoked=2.5)], 1, True),
        ([FIRST, *IN_LINE, served(15, invoked=2.5)], 0, True),
        # it was passed in line
        ([told(0.5, "asked", process=7), granted(2, "a", 2, 3, invoked=1), served(6.5)], 1, True),
        # it gave up, or says that it was told how long the line is
        ([FIRST, IN_LINE[0], gave_up(3, invoked=2, process=7), served(13.5)], 1, True),
        ([FIRST, IN_LINE[0]._replace(resource="told apart"), served(13.5)], 1, True),
    ],
)
def test_each_who_was_killed_in_line_may_take_a_window(
    events: list[HistoryEvent], window: float, *, starves: bool
) -> None:
    assert bool(check_liveness(merge(events), BOUND, window=window)) == starves


# ---- writing and reading --------------------------------------------------------------------------


@dataclass(eq=False)
class Lease:
    key: bytes = b"lock:a"
    token: int = 5
    slots: tuple[int, ...] = (0,)
    remaining: float = 10.0


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    lease = Lease()
    with Recorder(tmp_path / "one") as recorder:
        invoked = recorder.asked(lease.key)
        recorder.granted(lease, invoked)
        recorder.renewed(lease)
        recorder.renewed(Lease(remaining=0.0))  # it has run out: not recorded
        recorder.believed(lease, recorder.now())
        recorder.wrote("file", lease, recorder.now())
        recorder.releasing(lease)
        recorder.gave_up(lease.key, recorder.asked(lease.key, b"lock:b"))
        recorder.refused(lease.key, recorder.now())
        recorder.granted(lease, recorder.now(), min_hold=0.5)
        recorder.disturbed(7)
        end = recorder.now()
    events = read(tmp_path / "one")
    words = "asked granted renewed believed wrote releasing asked asked gave_up refused granted"
    assert [event.what for event in events] == [*words.split(), "disturbed"]
    grant = events[1]
    assert (grant.key, grant.token, grant.slots, grant.invoked) == ("lock:a", 5, (0,), invoked)
    assert invoked + 10 <= grant.until <= end + 10
    assert grant.process == os.getpid()
    assert (grant.min_hold, events[-2].min_hold) == (0, 0.5)
    assert [event.key for event in events[6:8]] == ["lock:a", "lock:b"]
    assert not check(events[:9])


def test_a_lease_that_grows_and_shrinks_is_recorded(tmp_path: Path) -> None:
    lease, reader = Lease(b"rwlock:a", 5, ()), Lease(b"rwlock:a", 7, ())
    with Recorder(tmp_path / "one") as recorder:
        recorder.granted(lease, recorder.asked(lease.key), units=1, capacity=9)
        invoked, lease.token = recorder.now(), 6
        recorder.resized(lease, invoked, units=9, capacity=9)
        recorder.granted(reader, recorder.asked(lease.key), units=1, capacity=9)
        recorder.shrinking(lease, units=1, capacity=9)
    _, grant, grown, *_, shrinks = events = read(tmp_path / "one")
    assert (grown.invoked, grown.lease) == (invoked, grant.lease)
    assert [each.rule for each in check(events)] == ["overlap"], "a reader beside a writer"
    told = [(each.what, each.token, each.units, each.capacity) for each in (grown, shrinks)]
    assert told == [("resized", 6, 9, 9), ("shrinking", 6, 1, 9)]


def test_events_are_equal_after_a_round_trip_and_a_torn_last_line_is_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "one"
    events = [
        HistoryEvent(1.5, "granted", "lock:\udc80", "a", 1 << 52, 1.25, 9.0, 2, 4, (1, 3), "", 12),
        HistoryEvent(2.5, "releasing", "lock:\x85\n", "a"),
    ]
    with Recorder(path) as recorder:
        for event in events:
            recorder.record(event)
    written = path.read_text()
    path.write_text(written + '{"at":2.0,"wh')
    assert read(path) == events
    path.write_text('{"at":1.0,"wh\n' + written)
    with pytest.raises(ValueError, match="no event"):
        read(path)


WRITER = """
import sys
from itertools import count
from dibs.testing import HistoryEvent, Recorder
recorder = Recorder(sys.argv[1])
for number in count():
    recorder.record(HistoryEvent(float(number), "disturbed"))
    if number == 1000:
        print("written", flush=True)
"""


@pytest.mark.multiprocess
def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
    times = [event.at for event in read(path)]
    assert len(times) > 1000
    assert times == [float(number) for number in range(len(times))]
