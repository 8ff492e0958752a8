"""Durations and limits of the protocol, and how they follow from a ttl. Seconds, unless stated."""

MAX_CLAIM_TIMEOUT = 5.0
"""Seconds within which a grant by notification must be claimed, at most."""

HEARTBEAT_POSITIONS = 16
"""How many waiters at the front of a queue send a heartbeat every third of the claim timeout."""

EXAMINED_POSITIONS = 64
"""How many waiters are looked at. If all of them are passed over, the next client that asks is granted."""

COUNTED_POSITIONS = 1_000
"""The largest queue position that is counted."""

STEPS = 64
"""How many entries a command can expire, and waiters grant or refuse. Later commands do the rest."""

BATCH_STEPS = 256
"""How many of these steps all commands of a batch share."""

LEAST_STEPS = 4
"""How many each command still has once the batch has used up its `BATCH_STEPS`."""

TOMBSTONE_TTL = 60.0
"""Seconds for which an ended id is remembered, at least."""

DRIFT = 0.01
"""How far clocks may run apart, as a fraction of the time that they measure."""

MIN_TTL = 0.1
"""The shortest ttl: of a shorter one, more than half would be margin."""

END_OF_TIME = 7_258_118_400_000_000
"""The year 2200 in microseconds: a later stamp cannot be right."""


def margin(ttl: float) -> float:
    """Seconds before the store's expiry at which the holder stops trusting its lease."""
    return max(0.1 * ttl, 0.05) + DRIFT * ttl


def trusted(ttl: float) -> float:
    """Seconds after sending the command for which the holder trusts a lease of this ttl."""
    return ttl - margin(ttl)


def claim_timeout(ttl: float) -> float:
    """Seconds within which the owner of a grant by notification must send its first renewal.

    Everybody waits for it, so a short ttl gives half of itself, unless that would be all margin.
    """
    return min(MAX_CLAIM_TIMEOUT, max(ttl / 2, min(ttl, 0.5)))


def renew_after(ttl: float) -> float:
    """Seconds from a confirmed message to the next renewal."""
    return ttl / 3


def heartbeat_interval(timeout: float) -> float:
    """Seconds between two heartbeats of a waiter at the front of the queue."""
    return timeout / 3


def tombstone_ttl(call_timeout: float) -> float:
    """Seconds for which an id is remembered, because a copy of its command may still be under way."""
    return max(TOMBSTONE_TTL, 2 * call_timeout)


def next_token(last: int, stamp: int, floor: int) -> int:
    """The fencing token after `last`: the store's wall clock in µs if that is larger and plausible."""
    believable = stamp if stamp <= END_OF_TIME else 0
    return max(last + 1, floor + 1, believable)
