"""The ring, histograms, families: what the observatory is made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.server.observatory.events import Event, shape
from dibs.server.observatory.families import OTHERS, Families, family_of
from dibs.server.observatory.histogram import STEPS, Histogram, bound
from dibs.server.observatory.ring import Ring


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


@given(st.lists(st.floats(0, 1e7), min_size=1))
def test_a_histogram_never_understates(times: list[float]) -> None:
    found = Histogram()
    for each in times:
        found.add(each)
    assert found.count == len(times)
    assert found.longest == max(times)
    for part in (0.5, 0.99, 1.0):
        told = found.quantile(part)
        assert told is not None
        at_most = sum(each <= told for each in times)
        assert at_most >= part * len(times)


def test_steps_double_and_hold_their_bounds() -> None:
    for step in range(STEPS - 1):
        found = Histogram()
        found.add(bound(step))
        assert found.counts[step] == 1
    found = Histogram()
    assert found.quantile(0.5) is None
    found.add(-1.0)
    found.add(1e12)
    assert (found.counts[0], found.counts[-1], found.longest) == (1, 1, 1e12)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (b"jobs/17", b"jobs/"),
        (b"jobs/a/b", b"jobs/"),
        (b"/jobs", b"/"),
        (b"report-17", b"report-#"),
        (b"report-2026-01", b"report-#-#"),
        (b"report", b"report"),
        (b"\xff7", b"\xff#"),
    ],
)
def test_names_that_belong_together(name: bytes, family: bytes) -> None:
    assert family_of(name) == family


def test_families_are_bounded() -> None:
    families = Families(most=2)
    assert families.of(b"lock:a/1") is families.of(b"lock:a/2")
    assert families.of(b"semaphore:a/1") is not families.of(b"lock:a/1")
    assert families.of(b"lock:b/1") is families.of(b"lock:c/1")
    assert families.of(b"lock:b/1").name == OTHERS
    assert len(list(families)) == 3


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
