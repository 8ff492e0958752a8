"""Histories survive the death of their writers and merge in the order of time."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dibs.testing import HistoryEvent, Recorder, check, read


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
        recorder.believed(lease, recorder.now())
        recorder.wrote("file", lease, recorder.now())
        recorder.releasing(lease)
        recorder.gave_up(lease.key, recorder.asked(lease.key, b"lock:b"))
        recorder.refused(lease.key, recorder.now())
        recorder.granted(lease, recorder.now(), min_hold=0.5)
        recorder.disturbed(7)
        end = recorder.now()
    events = read(tmp_path / "one")
    assert [event.what for event in events] == [
        "asked", "granted", "renewed", "believed", "wrote", "releasing", "asked", "asked", "gave_up",
        "refused", "granted", "disturbed",
    ]  # fmt: skip
    grant = events[1]
    assert (grant.key, grant.token, grant.slots, grant.invoked) == ("lock:a", 5, (0,), invoked)
    assert invoked + 10 <= grant.until <= end + 10
    assert grant.process == os.getpid()
    assert (grant.min_hold, events[-2].min_hold) == (0, 0.5)
    assert [event.key for event in events[6:8]] == ["lock:a", "lock:b"]
    assert not check(events[:9])


def test_a_lease_that_grows_and_shrinks_is_recorded(tmp_path: Path) -> None:
    lease = Lease(key=b"rwlock:a", slots=())
    with Recorder(tmp_path / "one") as recorder:
        recorder.granted(lease, recorder.asked(lease.key), units=1, capacity=9)
        invoked = recorder.now()
        lease.token = 6
        recorder.resized(lease, invoked, units=9, capacity=9)
        reader = Lease(key=b"rwlock:a", slots=(), token=7)
        recorder.granted(reader, recorder.asked(lease.key), units=1, capacity=9)
    events = read(tmp_path / "one")
    change = events[2]
    assert (change.what, change.token, change.units, change.capacity) == ("resized", 6, 9, 9)
    assert change.invoked == invoked
    assert change.lease == events[1].lease
    with Recorder(tmp_path / "two") as recorder:
        recorder.shrinking(lease, units=1, capacity=9)
    (shrinks,) = read(tmp_path / "two")
    assert (shrinks.what, shrinks.token, shrinks.units, shrinks.capacity) == ("shrinking", 6, 1, 9)
    assert [violation.rule for violation in check(events)] == ["overlap"], (
        "a reader beside a writer"
    )


def test_events_are_equal_after_a_round_trip(tmp_path: Path) -> None:
    events = [
        HistoryEvent(1.5, "granted", "lock:\udc80", "a", 1 << 52, 1.25, 9.0, 2, 4, (1, 3), "", 12),
        HistoryEvent(2.5, "releasing", "lock:\x85\n", "a"),
    ]
    with Recorder(tmp_path / "one") as recorder:
        for event in events:
            recorder.record(event)
    assert read(tmp_path / "one") == events


def test_a_lease_that_has_run_out_is_not_renewed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "one") as recorder:
        recorder.renewed(Lease(remaining=0.0))
    assert read(tmp_path / "one") == []


def test_a_torn_last_line_is_left_out_and_any_other_refused(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text('{"at":1.0,"what":"disturbed"}\n{"at":2.0,"wh')
    assert [event.at for event in read(path)] == [1.0]
    path.write_text('{"at":1.0,"wh\n{"at":2.0,"what":"disturbed"}\n')
    with pytest.raises(ValueError, match="no event"):
        read(path)


WRITER = """
import sys
from dibs.testing import HistoryEvent, Recorder
recorder = Recorder(sys.argv[1])
number = 0
while True:
    recorder.record(HistoryEvent(float(number), "disturbed"))
    number += 1
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
    assert len(times) >= 1000
    assert times == [float(number) for number in range(len(times))]
