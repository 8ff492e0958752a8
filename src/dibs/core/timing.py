"""How durations of the protocol follow from a ttl."""

WINDOW = 5.0
"""How long a pushed grant stands unclaimed, at most."""

FRONT = 16
"""So many waiters at the front of a queue send a heartbeat every third of a claim timeout."""

SIGHT = 64
"""So many waiters are looked at; if all of them are passed over, whoever asks next is granted."""

POSITIONS = 1_000
"""Waiters ahead are counted up to this number."""

STEPS = 64
"""How many entries a command ends and waiters it grants or refuses, at most; later commands do the rest."""

FEW_STEPS = 4
"""The same, of a command in a batch that has used up its `BATCH_STEPS`."""
BATCH_STEPS = 256

BURIAL = 60.0
"""How long an ended id is remembered, at least."""

DRIFT = 0.01
"""Clocks may run this much apart, as a part of the time they measure."""

MIN_TTL = 0.1
"""A shorter lease would be all margin."""

END_OF_TIME = 7_258_118_400_000_000
"""The year 2200 in microseconds: a stamp beyond it is no time."""


def margin(ttl: float) -> float:
    """How long before the store's expiry the holder stops believing in its lease."""
    return max(0.1 * ttl, 0.05) + DRIFT * ttl


def trusted(ttl: float) -> float:
    """How long after it was sent a command that was granted `ttl` can be relied on."""
    return ttl - margin(ttl)


def claim_window(ttl: float) -> float:
    """How long a pushed grant of that ttl stands until its owner's first renewal.

    While it stands unclaimed everybody waits, so it is half of a short ttl, unless that would be all margin.
    """
    return min(WINDOW, max(ttl / 2, min(ttl, 0.5)))


def renew_after(ttl: float) -> float:
    """How long after a confirmed message the next renewal is due."""
    return ttl / 3


def sign_of_life_after(window: float) -> float:
    """How often a place at the front of the queue speaks up."""
    return window / 3


def burial(call_timeout: float) -> float:
    """How long a copy of a command may still be under way, and so how long its id is remembered."""
    return max(BURIAL, 2 * call_timeout)


def next_token(last: int, stamp: int, floor: int) -> int:
    """The fencing token after `last`: the store's wall clock, unless that can't be a time."""
    believable = stamp if stamp <= END_OF_TIME else 0
    return max(last + 1, floor + 1, believable)
