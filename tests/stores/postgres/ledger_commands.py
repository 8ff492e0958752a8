"""Commands of every kind for a few ids and keys, good and bad, and time between them."""

from dataclasses import replace
from math import inf, nan
from typing import Any

from hypothesis import strategies as st

from dibs.core.names import fingerprint
from dibs.model import MANY, MAX_SLOTS, Acquire, Command, Inspect, Release, Renew, Resize, Revoke
from tests.stores.told_plans import DEAD_CROWDS, LINE, TOLD, leave, wish
from tests.stores.told_plans import crowd as queue_of
from tests.stores.told_plans import crowd as waiters

OWN, OTHERS = "own", ("here", "there")
"""The inbox of whoever asks, and those of others."""

IDS = [*(f"id{n}" for n in range(4)), "i\0d\\\x10ö"]
KEYS = [b"lock:a", b"semaphore:\xff\x00b", b"lock:c"]

_SOON = 1_700_000_100_000_000

keys = st.sampled_from([KEYS[0], KEYS[0], *KEYS])
ids = st.sampled_from(IDS)
ttls = st.sampled_from([0.5, 3.0, 10.0, 30.0])
inboxes = st.sampled_from(["", OWN, OWN, *OTHERS])

acquires = st.builds(
    Acquire,
    key=keys,
    id=ids,
    owner=st.sampled_from(["host/1/a", 'hö"st\\/2/b', ""]),
    ttl=ttls,
    units=st.sampled_from([1, 1, 1, 2, 3]),
    capacity=st.sampled_from([1, 1, 1, 1, 2, 3, 4, MAX_SLOTS + 1, MANY]),
    queue=st.sampled_from([True, True, True, False]),
    waiter_ttl=st.sampled_from([1.0, 8.0, 30.0]),
    priority=st.integers(-1, 2),
    note=st.sampled_from(["", "why\nnot", "\0\x10\x100\\u0000"]),
    floor=st.sampled_from([0, 0, _SOON]),
    lock_delay=st.sampled_from([0.0, 0.0, 2.0]),
    inbox=inboxes,
)
renewals = st.builds(Renew, key=keys, id=ids, ttl=ttls, inbox=inboxes)
releases = st.builds(
    Release,
    key=keys,
    id=ids,
    retain=st.sampled_from([0.0, 0.0, 4.0]),
    tombstone=st.sampled_from([0.0, 0.0, 6.0]),
)
others = st.one_of(
    st.builds(Resize, key=keys, id=ids, units=st.integers(1, 4), seq=st.integers(0, 4)),
    st.builds(Inspect, key=keys),
    st.builds(
        Revoke,
        key=keys,
        lease=st.one_of(st.none(), ids.map(fingerprint)),
        reason=st.sampled_from(["because", 'it\'s "so"\\']),
        now=st.booleans(),
    ),
)

FLAWS: list[tuple[type[Any], dict[str, Any]]] = [
    (Acquire, {"ttl": 0.0}),
    (Acquire, {"ttl": nan}),
    (Acquire, {"waiter_ttl": inf}),
    (Acquire, {"units": 0}),
    (Acquire, {"units": MANY + 1}),
    (Acquire, {"capacity": MANY + 1}),
    (Acquire, {"units": 1.5}),
    (Acquire, {"units": True}),
    (Acquire, {"floor": 2**53}),
    (Acquire, {"floor": -1}),
    (Acquire, {"lock_delay": -1.0}),
    (Acquire, {"lock_delay": nan}),
    (Renew, {"ttl": -inf}),
    (Renew, {"ttl": 0.0}),
    (Resize, {"units": 0, "seq": 1}),
    (Resize, {"units": MANY + 1, "seq": 1}),
    (Release, {"retain": -1.0}),
    (Release, {"tombstone": nan}),
]
"""What no client of ours sends; the ledger knows what is wrong with each."""


def flawed(key: bytes, lease: str, which: tuple[type[Any], dict[str, Any]]) -> Command:
    """A command with one of the flaws."""
    kind, flaw = which
    sound: dict[str, Any] = {"ttl": 3.0} if kind in (Acquire, Renew) else {}
    if kind is Acquire:
        sound["owner"] = "o"
    command: Command = kind(key=key, id=lease, **{**sound, **flaw})
    return command


commands = st.one_of(acquires, acquires, acquires, renewals, renewals, releases, others)
rarely_flawed = st.one_of(
    *[commands] * 30, st.builds(flawed, key=keys, lease=ids, which=st.sampled_from(FLAWS))
)
batches = st.lists(rarely_flawed, min_size=1, max_size=12)
everywhere = st.one_of(acquires, renewals, releases).map(
    lambda command: [replace(command, key=key) for key in KEYS]
)
"""The same for all keys: what is easy on one of them need not be on another."""
waits = st.sampled_from([0.01, 0.6, 1.0, 1.7, 5.0, 12.0, 70.0])
steps = st.one_of(
    *[batches] * 4, everywhere, everywhere, waits, waits, st.just("sweep"), st.just("step back")
)
plans = st.one_of(*[st.lists(steps, min_size=15, max_size=60)] * 3, DEAD_CROWDS)

# ---- a queue at one key ---------------------------------------------------------------------------------

few = st.sampled_from(IDS[:4])


def queuers(capacity: int) -> st.SearchStrategy[Acquire]:
    """Acquires that wait, of one capacity."""
    return st.builds(
        Acquire,
        key=st.just(KEYS[0]),
        id=few,
        owner=st.just("o"),
        ttl=st.sampled_from([3.0, 30.0]),
        units=st.sampled_from([1, 1, 2]),
        capacity=st.just(capacity),
        queue=st.just(True),
        waiter_ttl=st.just(30.0),
        priority=st.sampled_from([0, 0, 0, 1]),
        floor=st.sampled_from([0, 0, _SOON]),
        inbox=inboxes,
    )


leavers = st.builds(
    Release, key=st.just(KEYS[0]), id=few, tombstone=st.sampled_from([*[0.0] * 5, 6.0])
)


def crowd(capacity: int) -> st.SearchStrategy[list[Any]]:
    """A plan of what a few who want the same do, one command at a time."""
    flaw = st.builds(flawed, key=st.just(KEYS[0]), lease=few, which=st.sampled_from(FLAWS))
    few_things = [queuers(capacity)] * 5 + [leavers] * 4 + [renewals, flaw]
    call = st.sampled_from(few_things).flatmap(lambda kind: kind).map(lambda command: [command])
    wait: st.SearchStrategy[Any] = st.sampled_from([0.01, 0.6, 1.7, 4.0, 4.0, 31.0])
    step = st.sampled_from([call, call, call, wait]).flatmap(lambda kind: kind)
    return st.lists(step, min_size=15, max_size=60)


crowds = st.one_of(*map(crowd, [1, 1, 2, 3]), DEAD_CROWDS)


# ---- plans for what is special about rows ---------------------------------------------------------------

TOLD_ROWS: list[list[Any]] = [
    *TOLD,
    [  # a place that becomes a hold in its row, beside the one inside the key's row
        [wish("a", capacity=2), wish("b", capacity=2), wish("c", capacity=2)],
        [leave("b")],
        [Renew(LINE, "c", 30.0)],
        [Renew(LINE, "c", 60.0), Inspect(LINE)],
        [leave("a")],
        [Renew(LINE, "c", 60.0), Inspect(LINE), leave("c")],
        [Inspect(LINE)],
    ],
    [  # a key that has had two holds is empty again, in one batch
        [
            *(wish("a", capacity=2), wish("b", capacity=2), leave("b"), leave("a")),
            *(wish("c", capacity=2), Inspect(LINE), wish("d", capacity=2), Inspect(LINE)),
        ],
    ],
    [[wish("a")], [leave("a", retain=4.0, tombstone=6.0)], 5.0, [Inspect(LINE)], 5.5, [wish("a")]],
    [
        waiters(80, waiter_ttl=5.0),
        12.0,
        [wish("new", queue=False)],
        [wish("new", queue=False)],
    ],
    [waiters(80), [wish("more", capacity=5000)], [Inspect(LINE)]],
    # holds beside the one inside the key's row, which end one by one
    [
        queue_of(3, capacity=2, ttl=3.0, priority=1, lock_delay=2.0),
        *([Renew(LINE, "w0", 30.0, "there")] for _ in range(2)),
        *([leave(lease)] for lease in ("w0", "w2", "w1", "w3")),
        [Inspect(LINE)],
    ],
]

MORE_THAN_A_BATCH: list[Any] = [
    waiters(400, waiter_ttl=5.0),
    12.0,
    [Inspect(LINE)] * 9,
    [Inspect(LINE)],
]
"""More has expired than one batch may end, so it matters which commands are a batch."""
