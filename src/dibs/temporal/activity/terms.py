"""How long an activity's lease is: from the activity's timeouts, and a margin."""

from datetime import timedelta
from typing import NamedTuple

from temporalio.activity import Info

from dibs.core.timing import DRIFT, margin

SHORTEST = 1.0
"""No lease is shorter, in seconds: a timeout of less than a second makes no sense of one."""

GRACE = 1.0
"""So much longer than the attempt the lease may be kept, at least, in seconds."""


class Times(NamedTuple):
    """What the server has told of an attempt, in seconds."""

    left: float | None
    """Until the server gives up on it, from its beginning."""
    heartbeat: float | None
    """It has to be heard of so often."""
    total: float | None = None
    """Until the server gives up on the activity, from the attempt's beginning."""

    @property
    def to_wait(self) -> float | None:
        """How long a wait for the lock may take, so that its end is still told; None for ever."""
        return None if self.total is None else _less_a_little(self.total)

    @property
    def to_wait_now(self) -> float | None:
        """The same within this attempt."""
        if self.left is None or self.left == self.total:
            return self.left
        return _less_a_little(self.left)


def times_of(info: Info) -> Times:
    """By the server's clock alone, so that it is the same whatever this machine's says."""
    total = _seconds(info.schedule_to_close_timeout)
    if total is not None:
        total = max(total - (info.started_time - info.scheduled_time).total_seconds(), 0.0)
    ends = (_seconds(info.start_to_close_timeout), total)
    left = min((each for each in ends if each is not None), default=None)
    return Times(left, _seconds(info.heartbeat_timeout), total)


def longest_hold(times: Times) -> float | None:
    """How long the lease may be kept at all; None where the server sets no end."""
    if times.left is None:
        return None
    return times.left + max(DRIFT * times.left, GRACE)


def ttl_for(longest: float | None, wanted: float) -> float:
    """A ttl: what is wanted, or less where the whole activity takes less."""
    return wanted if longest is None else min(wanted, whole(longest))


def whole(longest: float) -> float:
    """A ttl that the holder may rely on for so long without a renewal."""
    # trusted(ttl) is ttl less its margin, which is a part of it, or a constant for short ones
    ttl = max(longest / (1 - 0.1 - DRIFT), longest + margin(0.0) + DRIFT * longest)
    return max(ttl, SHORTEST)


def _less_a_little(time: float) -> float:
    return time - min(max(time / 10, 0.5), time / 2)


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
