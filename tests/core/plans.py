"""Plans for ledgers: some are told, for what chance comes upon too seldom, and others are drawn.

A plan is a list of batches, of seconds that pass between them (floats), and of microseconds by which the
wall clock alone is stepped (integers).
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from dibs.core.codec import decode_command
from dibs.core.names import fingerprint
from dibs.core.timing import EXAMINED_POSITIONS
from dibs.model import MANY, MAX_SLOTS, Acquire, Command, Inspect, Release, Renew, Resize, Revoke
from dibs.testing.clock import EPOCH
from dibs.testing.conformance import vectors

# ---- told -----------------------------------------------------------------------------------------

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

VECTORS: list[list[Any]] = [*map(plan_of, vectors.PLANS), *NEW]

# ---- drawn ----------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """What commands are about: a key, the ids that use it, their units of a capacity."""

    key: bytes
    ids: Sequence[str]
    shapes: Sequence[tuple[int, int]]
    kinds: str
    """Letters of commands, see `drawn`: each is drawn as often as it is there."""


IDS = ["id0", "id1", "id2", "id3", "id4", "ид\n\0 5", ""]
SHAPES = [
    *[(1, 1)] * 8,
    *[(1, 2), (1, 3), (2, 2), (2, 3), (1, 4), (3, 4), (2, 1)],
    *[(2, MAX_SLOTS + 1), (1, MANY), (MANY, MANY)],
]
OF_FOUR = [(1, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
"""Many at once, so that what is at the head does not fit while something behind it would."""
HAND_TO_HAND = Scene(
    b"lock:line", IDS[:4], [*[(1, 1)] * 10, (1, 2), (2, 2), (2, 2)], "aaaaaaaaRRRRRRhhrv"
)
SCENES = [
    *[Scene(b"lock:a", IDS, SHAPES, "aaaaaaahhhhrrrssvi!")] * 3,
    *[Scene(b"semaphore:\xff\x00{b}%7D", IDS, OF_FOUR, "aaaaaahhhrrrss!")] * 2,
    Scene(b"lock:plain", IDS[:2], [(1, 1)], "AAhRr"),
]

INBOXES = ["", "here", "there", "there"]
TTLS = [0.5, 4.0, 8.0, 32.0, 32.0]
"""Few durations, exact in binary, so that things happen at the same time."""
DELAYS = [0.0, 0.0, 0.0, 2.0, 8.0]
WAITS = [0.25, 0.5, 1.0, 2.0, 2.0, 4.0, 8.0, 64.0]
CLOCK_STEPS = [-3_600_000_000, 7_200_000_000, 8_836_000_000_000_000, -EPOCH]


def drawn(draw: Random, scene: Scene) -> Command:
    """A command."""
    pick, key, name = draw.choice, scene.key, draw.choice(scene.ids)
    match pick(scene.kinds):
        case "a":
            units, capacity = pick(scene.shapes)
            return Acquire(
                *(key, name, pick(["host/1/a", "höst/2/b", ""]), pick(TTLS), units, capacity),
                queue=pick([True, True, True, False]),
                waiter_ttl=pick([1.0, 8.0, 32.0, 32.0]),
                priority=pick([-1, 0, 0, 0, 0, 1]),
                note=pick(["", "why\0not", "}{%"]),
                floor=pick([0, 0, 0, EPOCH + 100_000_000]),
                lock_delay=pick(DELAYS),
                inbox=pick(INBOXES),
            )
        case "A":
            return Acquire(key, name, "o", pick(TTLS))
        case "h":
            return Renew(key, name, pick(TTLS), pick(INBOXES))
        case "r":
            return Release(key, name, pick(DELAYS), pick(DELAYS))
        case "R":
            return Release(key, name)
        case "s":
            return Resize(key, name, draw.randint(1, 4), draw.randint(0, 4))
        case "v":
            leases = [None, fingerprint(name), fingerprint(name), ""]
            return Revoke(key, pick(leases), "because", pick([True, False]))
        case "i":
            return Inspect(key)
    return senseless(draw, drawn(draw, scene))


def senseless(draw: Random, command: Command) -> Command:
    """What no client of ours would send."""
    wrong: dict[str, list[Any]] = {
        "ttl": [0.0, -1.0, nan, inf],
        "waiter_ttl": [0.0, -1.0, nan, inf],
        "lock_delay": [-1.0, nan, inf],
        "retain": [-1.0, nan, inf],
        "tombstone": [-1.0, nan, inf],
        "units": [0, -1, MANY + 1, *([1.5, 1.0, True] if isinstance(command, Acquire) else ())],
        "capacity": [MANY + 1],
        "priority": [0.5, 1.0, False],
        "floor": [-1, 2**53],
    }
    fields = [name for name in wrong if hasattr(command, name)]
    if not fields:
        return command
    field = draw.choice(fields)
    return replace(command, **{field: draw.choice(wrong[field])})


def _step(seed: int, kinds: str) -> Any:
    draw = Random(seed)
    match draw.choice(kinds):
        case "w":
            return draw.choice(WAITS)
        case "c":
            return draw.choice(CLOCK_STEPS)
        case "h":
            return [drawn(draw, HAND_TO_HAND) for _ in range(draw.randint(1, 5))]
    return [drawn(draw, draw.choice(SCENES)) for _ in range(draw.randint(1, 12))]


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

PLANS: st.SearchStrategy[list[Any]] = st.one_of(
    st.builds(
        lambda seeds, kinds: [_step(seed, kinds) for seed in seeds],
        st.lists(st.integers(0, 2**32), min_size=12, max_size=40),
        st.sampled_from(["bbbbbbhhhwwwc", "bbbbbbhhhwwwc", "hhhhw"]),
    ),
    DEAD_CROWDS,
)
