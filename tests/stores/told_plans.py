"""Plans that chance comes upon too seldom: who waits or holds has ended, is silent, or asks for too much.

A plan is a list of batches, of seconds that pass between them (floats), and of microseconds by which the
wall clock alone is stepped (integers).
"""

import json
from typing import Any

from hypothesis import strategies as st

from dibs.core.codec import decode_command
from dibs.core.timing import EXAMINED_POSITIONS
from dibs.model import Acquire, Inspect, Release, Renew
from dibs.testing.conformance import vectors

LINE = b"lock:a"


def wish(lease: str, **more: Any) -> Acquire:
    """An acquire that waits."""
    wishes = {"owner": "o", "ttl": 30.0, "queue": True, "inbox": "there", **more}
    return Acquire(LINE, lease, **wishes)


def leave(lease: str, **more: Any) -> Release:
    """Its release."""
    return Release(LINE, lease, **more)


def crowd(many: int, **wishes: Any) -> list[Any]:
    """One holds, and so many wait."""
    return [wish(f"w{number}", **{"waiter_ttl": 90.0, **wishes}) for number in range(many + 1)]


def beat(number: int) -> Renew:
    """A heartbeat of one of a crowd, or its renewal."""
    return Renew(LINE, f"w{number}", 30.0, "there")


def plan_of(vector: str) -> list[Any]:
    """The plan of a line of `vectors.jsonl`."""
    return [
        step["wait"]
        if "wait" in step
        else round(step["wall"] * 1e6)
        if "wall" in step
        else [decode_command(fields, bytes.fromhex(key)) for key, fields in step["batch"]]
        for step in json.loads(vector)["steps"]
    ]


NEW: list[list[Any]] = []
"""To add a plan to the vectors, put it here, run `python -m tests.core.write_vectors`, and remove it."""

TOLD: list[list[Any]] = [*map(plan_of, vectors.PLANS[:-60]), *NEW]
"""The vectors that were planned; 60 others are drawn."""


def dead_crowd(many: int) -> st.SearchStrategy[list[Any]]:
    """Plans in which many wait and only a few of them are ever heard of again."""
    few = st.sampled_from(sorted({0, 1, 2, many // 2, many - 1, many}))
    steps = [
        *[few.map(lambda number: [beat(number)])] * 5,
        *[few.map(lambda number: [leave(f"w{number}")])] * 2,
        *[st.sampled_from([0.6, 1.7, 1.7, 5.1, 12.0])] * 3,
        st.sampled_from([[wish("new", queue=False)], [wish("new")], [Inspect(LINE)]]),
    ]
    wishes = st.fixed_dictionaries(
        {"ttl": st.sampled_from([3.0, 30.0]), "waiter_ttl": st.sampled_from([30.0, 90.0])},
        optional={"lock_delay": st.just(2.0), "capacity": st.just(2), "priority": st.just(1)},
    )
    return st.builds(
        lambda wishes, plan: [crowd(many, **wishes), *plan, [Inspect(LINE)]],
        wishes,
        st.lists(st.one_of(steps), min_size=6, max_size=25),
    )


DEAD_CROWDS = st.sampled_from([3, 18, 18, EXAMINED_POSITIONS + 16]).flatmap(dead_crowd)
