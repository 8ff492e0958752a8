"""Any commands, with time moved between them, for the ledger in Lua and the one in Python."""

from dataclasses import replace
from math import inf, nan
from typing import Any

from hypothesis import strategies as st

from dibs.core.names import fingerprint
from dibs.model import MANY, MAX_SLOTS, Acquire, Inspect, Release, Renew, Resize, Revoke
from tests.stores.redis.ledger_scripted import STAMP
from tests.stores.told_plans import DEAD_CROWDS

KEYS = [b"lock:a", b"semaphore:\xff\x00{b}%7D"]
PLAIN = b"lock:plain"
LINE = b"lock:line"
IDS = ["id0", "id1", "id2", "id3", "id4", "ид\n\0 5", ""]

YEAR_2250 = 8_836_000_000_000_000

_keys = st.sampled_from([*KEYS[:1] * 3, *KEYS])
_ids = st.sampled_from(IDS)
_leases = st.sampled_from([None, "", *map(fingerprint, IDS)])
_ttls = st.sampled_from([0.5, 3.0, 10.0, 30.0])
_delays = st.sampled_from([0.0, 0.0, 0.0, 2.0, 6.0])
_units_of_capacity = st.sampled_from(
    [
        *[(1, 1)] * 8,
        (1, 2),
        (1, 3),
        (2, 2),
        (2, 3),
        (1, 4),
        (3, 4),
        (2, MAX_SLOTS + 1),
        (1, MANY),
        (MANY, MANY),
        (2, 1),
    ]
)


def acquire(shape: tuple[int, int], **wishes: Any) -> Acquire:
    return Acquire(units=shape[0], capacity=shape[1], **wishes)


_acquires = st.builds(
    acquire,
    shape=_units_of_capacity,
    key=_keys,
    id=_ids,
    owner=st.sampled_from(["host/1/a", "höst/2/b", ""]),
    ttl=_ttls,
    queue=st.sampled_from([True, True, True, True, False]),
    waiter_ttl=st.sampled_from([1.0, 8.0, 30.0, 30.0]),
    priority=st.sampled_from([-1, 0, 0, 0, 1]),
    note=st.sampled_from(["", "why\0not", "}{%"]),
    floor=st.sampled_from([0, 0, STAMP + 100_000_000]),
    lock_delay=_delays,
    inbox=st.sampled_from(["", "here", "there", "there"]),
)
_crowds = st.builds(
    acquire,
    shape=st.sampled_from([(1, 4), (1, 4), (2, 4), (3, 4), (4, 4)]),
    key=st.just(KEYS[1]),
    id=_ids,
    owner=st.just("o"),
    ttl=_ttls,
    queue=st.sampled_from([True, True, False]),
    priority=st.sampled_from([0, 0, 1]),
    inbox=st.just("there"),
)
"""Many at once, so that what is at the head does not fit while something behind it would."""
_renewals = st.builds(
    Renew, key=_keys, id=_ids, ttl=_ttls, inbox=st.sampled_from(["", "", "here", "there"])
)
_releases = st.builds(Release, key=_keys, id=_ids, retain=_delays, tombstone=_delays)
_resizes = st.builds(
    Resize, key=_keys, id=_ids, units=st.sampled_from([1, 2, 3, 4]), seq=st.integers(0, 4)
)
_others = st.one_of(
    st.builds(Inspect, key=_keys),
    st.builds(Revoke, key=_keys, lease=_leases, reason=st.just("because"), now=st.booleans()),
)

_few = st.sampled_from(IDS[:2])
_plain = st.one_of(
    st.builds(Acquire, key=st.just(PLAIN), id=_few, owner=st.just("o"), ttl=_ttls),
    st.builds(Renew, key=st.just(PLAIN), id=_few, ttl=_ttls),
    st.builds(Release, key=st.just(PLAIN), id=_few),
    st.builds(Release, key=st.just(PLAIN), id=_few, retain=_delays),
)
"""What most commands are: a lock that nobody else wants."""

_line_ids = st.sampled_from(IDS[:4])
_in_line = st.builds(
    acquire,
    shape=st.sampled_from([*[(1, 1)] * 10, (1, 2), (2, 2), (2, 2)]),
    key=st.just(LINE),
    id=_line_ids,
    owner=st.just("o"),
    ttl=st.sampled_from([1.5, 3.0, 30.0, 30.0]),
    queue=st.just(True),
    waiter_ttl=st.sampled_from([1.0, 30.0, 30.0]),
    floor=st.sampled_from([0, 0, 0, STAMP + 100_000_000]),
    lock_delay=st.sampled_from([0.0, 0.0, 2.0]),
    inbox=st.sampled_from(["here", "there"]),
)
_leaving = st.builds(Release, key=st.just(LINE), id=_line_ids)
_in_use = st.one_of(
    st.builds(
        Renew,
        key=st.just(LINE),
        id=_line_ids,
        ttl=_ttls,
        inbox=st.sampled_from(["", "here", "there"]),
    ),
    st.builds(Release, key=st.just(LINE), id=_line_ids, retain=_delays, tombstone=_delays),
    st.builds(Revoke, key=st.just(LINE), lease=st.none(), reason=st.just("so"), now=st.booleans()),
)
_lines = st.lists(
    st.sampled_from([*[_in_line] * 4, *[_leaving] * 3, _in_use, _in_use]).flatmap(
        lambda kind: kind
    ),
    min_size=1,
    max_size=5,
)
"""A mutex that goes from hand to hand."""

_no_time = st.sampled_from([0.0, -1.0, nan, inf])
_no_delay = st.sampled_from([-1.0, nan, inf])
_wrong: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"ttl": _no_time}),
    st.fixed_dictionaries({"waiter_ttl": _no_time}),
    st.fixed_dictionaries({"lock_delay": _no_delay}),
    st.fixed_dictionaries({"units": st.sampled_from([0, -1, 1.5, 1.0, True, MANY + 1])}),
    st.fixed_dictionaries({"capacity": st.just(MANY + 1)}),
    st.fixed_dictionaries({"priority": st.sampled_from([0.5, 1.0, False])}),
    st.fixed_dictionaries({"floor": st.sampled_from([-1, 2**53])}),
)
_invalid = st.one_of(
    st.builds(lambda command, wrong: replace(command, **wrong), _acquires, _wrong),
    st.builds(Renew, key=_keys, id=_ids, ttl=_no_time),
    st.builds(Release, key=_keys, id=_ids, retain=_no_delay),
    st.builds(Release, key=_keys, id=_ids, tombstone=_no_delay),
    st.builds(Resize, key=_keys, id=_ids, units=st.sampled_from([0, -2, MANY + 1]), seq=st.just(3)),
)
"""What no client of ours would send."""

COMMANDS: st.SearchStrategy[Any] = st.sampled_from(
    [
        *[_acquires] * 7,
        *[_crowds] * 3,
        *[_renewals] * 4,
        *[_releases] * 3,
        *[_resizes] * 2,
        *[_plain] * 4,
        _others,
        _invalid,
    ]
).flatmap(lambda kind: kind)

_batches = st.lists(COMMANDS, min_size=1, max_size=12)
_waits = st.sampled_from([0.01, 0.6, 1.0, 1.7, 1.7, 5.0, 12.0, 70.0])
_steps_of_the_clock = st.sampled_from([-3_600_000_000, 7_200_000_000, YEAR_2250, -STAMP])
"""In the wall clock's microseconds alone."""

_anything = st.lists(
    st.sampled_from([*[_batches] * 6, *[_lines] * 3, *[_waits] * 3, _steps_of_the_clock]).flatmap(
        lambda kind: kind
    ),
    min_size=12,
    max_size=40,
)
_hand_to_hand = st.lists(
    st.sampled_from([_lines, _lines, _waits]).flatmap(lambda kind: kind), min_size=12, max_size=40
)

PLANS: st.SearchStrategy[list[Any]] = st.one_of(_anything, _anything, _hand_to_hand, DEAD_CROWDS)
