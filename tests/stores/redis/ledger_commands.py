"""Any commands, with time moved between them, for the ledger in Lua and the one in Python."""

from typing import Any

from hypothesis import strategies as st

from dibs.core.names import fingerprint
from dibs.model import MANY, MAX_SLOTS, Acquire, Inspect, Release, Renew, Resize, Revoke
from tests.stores.redis.ledger_scripted import STAMP
from tests.stores.told_plans import DEAD_CROWDS

type Strategy = st.SearchStrategy[Any]

KEYS = [b"lock:a", b"semaphore:\xff\x00{b}%7D"]
PLAIN = b"lock:plain"
LINE = b"lock:line"
IDS = ["id0", "id1", "id2", "id3", "id4", "ид\n\0 5", ""]

YEAR_2250 = 8_836_000_000_000_000

_keys = st.sampled_from([*KEYS[:1] * 3, *KEYS])
_ids = st.sampled_from(IDS)
_ttls = st.sampled_from([0.5, 3.0, 10.0, 30.0])
_delays = st.sampled_from([0.0, 0.0, 0.0, 2.0, 6.0])
_floors = st.sampled_from([0, 0, 0, STAMP + 100_000_000])
_inboxes = st.sampled_from(["", "here", "there", "there"])
_mostly = st.sampled_from([True, True, True, False])


def one_of(*weighted: tuple[int, Strategy]) -> Strategy:
    """Draws from each as often as its number says."""
    return st.sampled_from([each for weight, each in weighted for _ in range(weight)]).flatmap(
        lambda kind: kind
    )


def acquires(shapes: list[tuple[int, int]], **fields: Strategy) -> Strategy:
    """Acquires of so many units, of a capacity."""

    def build(shape: tuple[int, int], **drawn: Any) -> Acquire:
        return Acquire(units=shape[0], capacity=shape[1], **drawn)

    return st.builds(build, shape=st.sampled_from(shapes), ttl=_ttls, **fields)


_acquires = acquires(
    [*[(1, 1)] * 8, (1, 2), (1, 3), (2, 2), (2, 3), (1, 4), (3, 4), (2, MAX_SLOTS + 1), (1, MANY),
     (MANY, MANY), (2, 1)],
    key=_keys,
    id=_ids,
    owner=st.sampled_from(["host/1/a", "höst/2/b", ""]),
    queue=_mostly,
    waiter_ttl=st.sampled_from([1.0, 8.0, 30.0, 30.0]),
    priority=st.sampled_from([-1, 0, 0, 0, 1]),
    note=st.sampled_from(["", "why\0not", "}{%"]),
    floor=_floors,
    lock_delay=_delays,
    inbox=_inboxes,
)  # fmt: skip
_crowds = acquires(
    [(1, 4), (1, 4), (2, 4), (3, 4), (4, 4)],
    key=st.just(KEYS[1]),
    id=_ids,
    owner=st.just("o"),
    queue=_mostly,
    priority=st.sampled_from([0, 0, 1]),
    inbox=st.just("there"),
)
"""Many at once, so that what is at the head does not fit while something behind it would."""


def others(key: Strategy, ids: Strategy) -> Strategy:
    """What a holder or a waiter does next."""
    return one_of(
        (4, st.builds(Renew, key=key, id=ids, ttl=_ttls, inbox=_inboxes)),
        (2, st.builds(Release, key=key, id=ids)),
        (2, st.builds(Release, key=key, id=ids, retain=_delays, tombstone=_delays)),
    )


_resizes = st.builds(
    Resize, key=_keys, id=_ids, units=st.sampled_from([1, 2, 3, 4]), seq=st.integers(0, 4)
)
_revocations = st.builds(
    Revoke,
    key=st.sampled_from([*KEYS, LINE]),
    lease=st.sampled_from([None, "", *map(fingerprint, IDS)]),
    reason=st.just("because"),
    now=st.booleans(),
)

_few = st.sampled_from(IDS[:2])
_plain = st.builds(Acquire, key=st.just(PLAIN), id=_few, owner=st.just("o"), ttl=_ttls)
"""What most commands are: a lock that nobody else wants."""

_line_ids = st.sampled_from(IDS[:4])
_in_line = acquires(
    [*[(1, 1)] * 10, (1, 2), (2, 2), (2, 2)],
    key=st.just(LINE),
    id=_line_ids,
    owner=st.just("o"),
    queue=st.just(True),
    waiter_ttl=st.sampled_from([1.0, 30.0, 30.0]),
    floor=_floors,
    lock_delay=_delays,
    inbox=_inboxes,
)
_lines = st.lists(
    one_of((4, _in_line), (3, st.builds(Release, key=st.just(LINE), id=_line_ids)),
           (2, others(st.just(LINE), _line_ids))),
    min_size=1,
    max_size=5,
)  # fmt: skip
"""A mutex that goes from hand to hand."""

COMMANDS = one_of(
    (7, _acquires),
    (3, _crowds),
    (7, others(_keys, _ids)),
    (2, _resizes),
    (2, _plain),
    (2, others(st.just(PLAIN), _few)),
    (1, st.builds(Inspect, key=_keys) | _revocations),
)

_batches = st.lists(COMMANDS, min_size=1, max_size=12)
_waits = st.sampled_from([0.01, 0.6, 1.0, 1.7, 1.7, 5.0, 12.0, 70.0])
_steps_of_the_clock = st.sampled_from([-3_600_000_000, 7_200_000_000, YEAR_2250, -STAMP])
"""In the wall clock's microseconds alone."""

_anything = st.lists(
    one_of((6, _batches), (3, _lines), (3, _waits), (1, _steps_of_the_clock)),
    min_size=12,
    max_size=40,
)
_hand_to_hand = st.lists(one_of((2, _lines), (1, _waits)), min_size=12, max_size=40)

PLANS: st.SearchStrategy[list[Any]] = st.one_of(_anything, _anything, _hand_to_hand, DEAD_CROWDS)
