"""Two servers' events under kills, and what their judge finds; see `truth` for longer runs."""

from pathlib import Path
from typing import Any

import pytest

from dibs.testing import TorturePlan
from tests.server.torture.servers import StoreName
from tests.server.torture.trial import KINDS
from tests.server.torture.truth import StreamJudge, told_under_torture


@pytest.mark.long
@pytest.mark.multiprocess
@pytest.mark.serial
@pytest.mark.timeout(400)
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_events_tell_the_truth_while_servers_are_killed(tmp_path: Path, store: StoreName) -> None:
    plan = TorturePlan(seconds=60, processes=4, tasks=3, ttl=2, seed=5, primitives=KINDS)
    outcome = told_under_torture(tmp_path, store, plan)
    assert outcome.trouble == []
    assert outcome.verdict.violations == [], str(outcome.verdict)
    assert outcome.lies == []
    assert outcome.faults.total() > 5
    for counts in outcome.counts:
        assert counts["begun"] > 1, "it was followed through a kill"
        assert counts["judged"] > 100


# -- the judge --------------------------------------------------------------------------------------


HELLO = ("hello", {"server": "one"})


def event(what: str, at: float, lease: str, token: int = 1, **more: Any) -> tuple[str, Any]:
    event = {
        "what": what,
        "at": at,
        "kind": "lock",
        "name": "eA",
        "lease": lease,
        "token": token,
        "units": 1,
        "slots": [0],
        "found": False,
    }
    return "message", event | more


def judged(*events: tuple[str, Any]) -> list[str]:
    judge = StreamJudge("a server")
    for kind, data in (HELLO, *events):
        judge.take(kind, data)
    return judge.lies


def test_the_truth_is_believed() -> None:
    assert not judged(
        event("expired", 0.5, "before", 1, held_for=9.0),  # nobody knows of its grant
        event("granted", 1.0, "a", 2),
        event("queued", 1.2, "b", 0, slots=[]),
        event("released", 2.0, "a", 2, held_for=1.0),
        event("granted", 2.0, "b", 3),
        event("resized", 2.5, "b", 4, units=2, slots=[0, 1]),
        event("granted", 2.6, "c", 5, slots=[2]),
        event("expired", 3.0, "b", 4, units=2, slots=[0, 1], held_for=1.0),
        ("hello", {"server": "another"}),
        event("granted", 2.9, "c", 3),
    )


WRITER: dict[str, Any] = {"kind": "rwlock", "units": None, "slots": []}
READER: dict[str, Any] = {"kind": "rwlock", "units": 1, "slots": []}


@pytest.mark.parametrize(
    ("events", "lie"),
    [
        ([event("granted", 2, "b", 2)], "granted before the end of token 1"),
        (
            [event("released", 3, "a", held_for=2.0), event("granted", 2.9, "b", 2)],
            "granted 0.100 s before the end of token 1",
        ),
        (
            [event("released", 3, "a", held_for=2.0), event("granted", 3, "b", 1)],
            "its token is not above 1",
        ),
        ([event("released", 3, "a", held_for=1.5)], "it was held for 2.000 s"),
        ([event("released", 0.5, "a", held_for=-0.5)], "it ended 0.500 s before it was granted"),
        ([event("released", 3, "a", 7, held_for=2.0)], "it had token 1"),
        ([event("granted", 2, "a", 2)], "it has token 1 already"),
        (
            [event("granted", 2, "r", 2, **READER), event("granted", 3, "w", 3, **WRITER)],
            "granted before the end of token 2",
        ),
        (
            [event("granted", 2, "w", 2, **WRITER), event("granted", 3, "r", 3, **READER)],
            "granted before the end of token 2",
        ),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_a_lie_is_found(events: list[tuple[str, Any]], lie: str) -> None:
    """The first one, `a`, was granted at 1 with token 1."""
    lies = judged(event("granted", 1, "a"), *events)
    assert [lie in each for each in lies] == [True]


def test_readers_share() -> None:
    assert not judged(event("granted", 1, "a", **READER), event("granted", 2, "b", 2, **READER))
