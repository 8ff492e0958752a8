"""Plans that chance comes upon too seldom: who waits or holds has ended, is silent, or asks for too much.

A plan is a list of batches, and of seconds between them.
"""

from typing import Any

from hypothesis import strategies as st

from dibs.core.timing import EXAMINED_POSITIONS
from dibs.model import Acquire, Inspect, Release, Renew, Resize, Revoke

LINE = b"lock:a"
BOTH = (LINE, b"lock:c")


def wish(lease: str, **more: Any) -> Acquire:
    """An acquire that waits."""
    wishes = {"owner": "o", "ttl": 30.0, "queue": True, "inbox": "there", **more}
    return Acquire(LINE, lease, **wishes)


def leave(lease: str, **more: Any) -> Release:
    """Its release."""
    return Release(LINE, lease, **more)


def everywhere(kind: type[Any], lease: str, **more: Any) -> list[Any]:
    """The same of two keys in one batch, where each is the only one of its key."""
    sound = {"owner": "o", "ttl": 30.0, "queue": True, "inbox": "there"} if kind is Acquire else {}
    return [kind(key, lease, **{**sound, **more}) for key in BOTH]


def crowd(many: int, **wishes: Any) -> list[Any]:
    """One holds, and so many wait."""
    return [wish(f"w{number}", **{"waiter_ttl": 90.0, **wishes}) for number in range(many + 1)]


def beat(number: int) -> Renew:
    """A heartbeat of one of a crowd, or its renewal."""
    return Renew(LINE, f"w{number}", 30.0, "there")


def many_holders(capacity: int) -> list[Any]:
    """More holders than are ever listed, some of which end at the same time."""
    return [wish(f"{n:03}", capacity=capacity, ttl=5.0 + n % 11, queue=False) for n in range(107)]


MANY_HOLDERS: list[Any] = [
    many_holders(1000),
    [
        Inspect(LINE),
        leave("007"),
        Renew(LINE, "011", 30.0),
        Resize(LINE, "012", 3, 1),
        Inspect(LINE),
    ],
    [wish("x", capacity=100, queue=False), Resize(LINE, "013", 200, 1), Inspect(LINE)],
    6.0,
    [Inspect(LINE), wish("x", capacity=2000), wish("y", capacity=200, units=3), Inspect(LINE)],
    [leave(f"{n:03}") for n in range(50)],
    [wish("z", capacity=200, units=100), Revoke(LINE, None, "so"), Inspect(LINE)],
]
"""Many holders, read in the order in which they end, and some of them changed in the same batch."""

SLOTS: list[Any] = [
    [wish(f"{n}", capacity=1024, units=n, queue=False) for n in range(1, 12)],
    [leave("3"), Resize(LINE, "5", 9, 1), Resize(LINE, "11", 2, 1)],
    [wish("a", capacity=2000, units=7), Resize(LINE, "7", 20, 1), Inspect(LINE)],
    [wish("b", capacity=900, units=800), Resize(LINE, "a", 20, 1), leave("1"), Inspect(LINE)],
    [leave("2", retain=9.0), wish("c", capacity=1), wish("d", capacity=1024, units=30)],
    [Revoke(LINE, None, "so", now=True), Inspect(LINE), wish("e", capacity=9, units=9)],
]
"""Numbered and unnumbered units of one key."""

TOLD: list[list[Any]] = [
    [[wish(each) for each in "abcd"], [leave("a")], [leave("b")], [Renew(LINE, "b", 30.0)]],
    [[wish("a", inbox="here")], [Renew(LINE, "a", 30.0, "there")], [Revoke(LINE, None, "so")]],
    [
        [wish(lease, capacity=3, queue=False) for lease in "abc"],
        [Revoke(LINE, None, "so")],
        [Renew(LINE, lease, 30.0, "here") for lease in "abc"],
        [Revoke(LINE, None, "again")],
    ],
    [[wish("a", ttl=1.5), wish("b")], 1.7, [leave("a")]],
    [[wish("a"), wish("b", waiter_ttl=1.0), wish("c")], 1.7, [leave("a")]],
    [[wish("a"), wish("b", ttl=3.0), wish("c")], 5.0, [leave("a")]],
    [[wish("a"), wish("b"), wish("c", ttl=3.0)], 5.0, [leave("a")]],
    [[wish("a"), wish("b", lock_delay=2.0)], [leave("a")], 5.0, [Inspect(LINE)]],
    [[wish("a"), wish("b", ttl=2.0), wish("c")], 1.0, [leave("a")], 1.5, [wish("d", queue=False)]],
    [
        [wish("a", capacity=2, units=2), wish("b", capacity=2)],
        [leave("a")],
        [Resize(LINE, "b", 2, 1)],
        [Inspect(LINE)],
    ],
    [[wish("a"), wish("b"), wish("c")], [leave("a")], 5.0, [Inspect(LINE)]],
    [[wish("a"), wish("b"), wish("c")], [leave("a")], [Renew(LINE, "b", 60.0)], 31.0, [wish("d")]],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2)],
        [wish("c", units=2, capacity=2), wish("d"), Resize(LINE, "a", 1, 1), leave("a")],
    ],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2)],
        [wish("c", units=2, capacity=2), wish("d"), Resize(LINE, "a", 1, 1)],
        [leave("a")],
    ],
    [
        [wish("a", capacity=2), wish("b", capacity=2), wish("c", capacity=2)],
        [wish("d", capacity=2), wish("e", capacity=2)],
        [wish("f", capacity=2), leave("a"), leave("b"), leave("c"), Inspect(LINE)],
        [wish("g", capacity=2, priority=1), leave("d"), leave("e"), Inspect(LINE)],
    ],
    [[wish("a")], [leave("a", retain=4.0)], [leave("a")], [wish("b", queue=False)]],
    [[wish("a"), wish("b")], [leave("a", retain=4.0)], [leave("a")], [Inspect(LINE)]],
    [[wish("a", ttl=3.0), wish("b")], 3.5, [leave("a")], [Inspect(LINE)]],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2), wish("c", units=2, capacity=2)],
        [wish("d")],
        [leave("a")],
        [Inspect(LINE)],
    ],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2)],
        [wish("c", units=2, capacity=2, ttl=3.0), wish("d", capacity=2)],
        2.0,
        [Renew(LINE, "b", 30.0, "there"), Renew(LINE, "d", 30.0, "there")],
        2.0,
        [leave("a")],
        [Inspect(LINE)],
    ],
    [
        [wish("a", ttl=3.0), *(wish(lease) for lease in "bcdefgh")],
        5.7,
        [Renew(LINE, "h", 30.0, "there"), Renew(LINE, "g", 30.0, "there")],
        5.0,
        [Renew(LINE, "h", 30.0, "there")],
    ],
    [
        [wish("a", ttl=3.0, lock_delay=4.0), *(wish(lease) for lease in "bcdefgh")],
        5.7,
        [Renew(LINE, "h", 30.0, "there"), Renew(LINE, "g", 30.0, "there")],
    ],
    [[wish("a", ttl=3.0)], 5.0, [leave("a")], [Inspect(LINE)]],
    [[wish("a", ttl=3.0, lock_delay=2.0)], 4.0, [wish("b")], 1.7, [Inspect(LINE)]],
    [[wish("a", units=3, capacity=3)], [Resize(LINE, "a", 2, 2)], [Resize(LINE, "a", 1, 1)]],
    [
        [wish("a", units=2, capacity=2)],
        [wish("b", capacity=2)],
        [wish("c", capacity=2)],
        [leave("a")],
        [Inspect(LINE)],
    ],
    [
        [wish("a"), wish("b")],
        [wish("c"), wish("d", priority=1), wish("e"), wish("f", priority=1), wish("g", priority=2)],
        [
            wish("h"),
            wish("i", priority=1),
            wish("j", priority=2),
            Renew(LINE, "h", 30.0),
            leave("a"),
        ],
        [Inspect(LINE)],
    ],
    [
        [wish("a", ttl=9.0), leave("x", tombstone=9e3)],
        -600.0,
        [Renew(LINE, "a", 9.0)],
        11.0,
        [wish("b")],
    ],
    [[wish("a"), wish("b", floor=4 * 10**15)], [leave("a")], [leave("b")], [wish("c")]],
    [[wish("a"), wish("b"), wish("c", capacity=2)], [Inspect(LINE)]],
    [everywhere(Acquire, "a"), everywhere(Release, "a"), everywhere(Acquire, "b")],
    [[Inspect(LINE)], everywhere(Acquire, "a"), [wish("b")], everywhere(Release, "a")],
    [everywhere(Acquire, "a", ttl=3.0), 5.0, everywhere(Renew, "a", ttl=30.0)],
    [everywhere(Acquire, "a"), everywhere(Release, "a", tombstone=6.0), everywhere(Acquire, "a")],
    [crowd(20), 5.7, [beat(20)], [leave("w0")], 5.0, [beat(19)], [beat(20)], [leave("w19")]],
    [crowd(20), 1.0, [leave("w0")], 2.0, [beat(20), beat(19)], 3.0, [Inspect(LINE)], [beat(2)]],
    [crowd(20), 1.0, [leave("w0")], 2.0, [beat(1)], 1.0, [leave("w1")], 2.5, [beat(20)]],
    [crowd(20), 12.0, [beat(18)], 4.0, [leave("w0")], [wish("new", queue=False)], [beat(20)]],
    [
        crowd(2 * EXAMINED_POSITIONS),
        50.0,
        [leave("w0")],
        [beat(100)],
        [beat(70)],
        [leave("w100")],
        [beat(70)],
    ],
    [
        crowd(2 * EXAMINED_POSITIONS),
        50.0,
        [leave("w0"), beat(63)],
        [leave("w63")],
        [wish("new", queue=False)],
    ],
    [
        crowd(EXAMINED_POSITIONS - 1),
        [wish("near"), wish("far")],
        50.0,
        [leave("w0"), beat(30)],
        [beat(31)],
    ],
    [crowd(2 * EXAMINED_POSITIONS), 20.0, [beat(120)]],
    [[wish("w0", ttl=3.0), *crowd(30)[1:]], 4.0, [beat(30), beat(29)], 3.0, [beat(30)]],
    [[wish("w0", ttl=3.0, lock_delay=4.0), *crowd(30)[1:]], 4.0, [beat(30)], 3.0, [beat(30)]],
    [
        [wish("a"), wish("b", ttl=3.0), *(wish(lease) for lease in "cefdg")],
        1.0,
        [leave("a")],
        1.0,
        [Renew(LINE, lease, 30.0) for lease in "cefg"],
        0.6,
        [Renew(LINE, "g", 30.0)],
        [Renew(LINE, "c", 30.0)],
        [leave("c")],
        [leave("e")],
        [leave("f")],
        [Inspect(LINE)],
    ],
    [crowd(9, ttl=3.0), 1.0, [leave("w0")], 4.0, [beat(9)], [beat(3)], [leave("w9")]],
    [crowd(9, units=2, capacity=3), 1.0, [leave("w0")], 5.5, [wish("x", capacity=3)], [beat(3)]],
    MANY_HOLDERS,
    SLOTS,
]


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
