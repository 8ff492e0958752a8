"""A small run of the torture of two servers, and what its judge finds; see `__main__` for full runs."""

from pathlib import Path

import pytest

from dibs.testing import HistoryEvent as Event
from dibs.testing import Recorder, TorturePlan
from tests.server.torture.judging import ServiceJudge, waits
from tests.server.torture.marks import still_held
from tests.server.torture.trial import KINDS, tortured
from tests.torture.in_line import in_line

KEY = b"lock:x/lock-1"


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.serial
@pytest.mark.multiprocess
def test_nothing_is_held_twice_while_servers_and_ways_are_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)  # the store ends anyway
    plan = TorturePlan(
        seconds=17, cycles=250, processes=3, tasks=4, ttl=1, seed=3, primitives=KINDS
    )
    with tortured(tmp_path, "redis", plan, raw=1) as torture:
        verdict = torture.run()
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert torture.storm.trouble == ""
    assert torture.storm.counts.total() > 2
    assert verdict.cycles > 50


# -- the judge --------------------------------------------------------------------------------------


def judged(folder: Path, *events: Event) -> list[str]:
    with Recorder(folder / "history-1.jsonl") as recorder:
        for event in events:
            recorder.record(event)
    verdict = ServiceJudge(TorturePlan(ttl=1)).judge(folder, [])
    return [each.message for each in verdict.violations]


def granted(at: float, invoked: float, token: int, process: int) -> Event:
    return Event(
        at,
        "granted",
        KEY.decode(),
        f"{process}-{token}",
        token,
        invoked,
        at + 0.01,
        process=process,
    )


@pytest.mark.parametrize(
    ("came", "waited", "found"),
    [(1.2, 0.1, True), (1.0, 0.1, False), (1.2, 1.5, False)],
    ids=["overtaken", "asked before the other was in line", "silent for too long"],
)
def test_whoever_is_in_line_is_served_first(
    tmp_path: Path, came: float, waited: float, found: bool
) -> None:
    """The one asked at 1.0, and was told at 1.1 that it was in line."""
    told = judged(
        tmp_path,
        in_line(1.1, KEY, 1.0, 1),
        granted(came + waited, came, 7, 2),
        granted(came + waited + 0.1, 1.0, 8, 1),
    )
    assert [each.startswith("out of turn: token 7") for each in told] == [True] * found


def test_a_wait_counts_from_when_the_lock_became_free() -> None:
    first, waited, late = (
        granted(at, invoked, at, 1) for at, invoked in ((1, 0.5), (4, 0.8), (9, 8))
    )
    assert list(waits([first._replace(until=2.0), waited, late])) == [(2.0, waited)]


def test_a_release_that_was_acknowledged_was_done(tmp_path: Path) -> None:
    (told,) = judged(tmp_path, still_held(1.0, KEY, 7, 1))
    assert told == "token 7 was released, which was acknowledged, and is held still"
