"""What an acquire raises that ends without a grant: who is in the way, and what the store meant."""

from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    Corrupt,
    DibsError,
    Forbidden,
    InvalidRequest,
)
from dibs.model import Failed, Inspect, Refused, Reply, Status
from dibs.primitives import observing
from dibs.primitives.ask import Ask
from dibs.primitives.telling import contention, key_shown
from dibs.runtime.port import Answer, Runtime

ASIDE = 3.0
"""Seconds that a store has for what is said beside the wait: who is in the way, and that we leave."""


def refusal(ask: Ask, reply: Refused) -> DibsError:
    """The error for units that are not to be had now, or ever."""
    if reply.reason == "too_large":
        return DibsError(
            f"{ask.units} units of {key_shown(ask.key)} can't be had: "
            f"the capacity it was last declared with is smaller",
            key=ask.key,
        )
    if observing.observer is not None:
        observing.observer.in_the_way(reply.holders)
    holders = reply.holders
    return AcquireTimeout(
        contention(ask.key, holders, None),
        key=ask.key,
        holders=holders,
        retry_after=reply.recheck_in,
    )


async def timed_out(
    rt: Runtime, key: bytes, wait: float | None, ahead: int | None
) -> AcquireTimeout:
    """The error for who has waited for so long, with so many ahead at last."""
    try:
        status = (await rt.call(Inspect(key), ASIDE)).reply
    except DibsError:
        status = None
    if observing.observer is not None and isinstance(status, Status):
        observing.observer.in_the_way(status.holders)
    holders = status.holders if isinstance(status, Status) else ()
    return AcquireTimeout(
        f"{contention(key, holders, ahead)}; gave up after {_rounded(wait)} s",
        key=key,
        holders=holders[:8],
        position=ahead,
        retry_after=min((holder.expires_in for holder in holders), default=None),
    )


def _rounded(wait: float | None) -> str:
    """Part of a longer wait may have been spent before: no more digits than help."""
    return "?" if wait is None else f"{round(wait, 1 if wait >= 1 else 2):g}"


def not_busy(answer: Answer, key: bytes) -> Answer:
    """A key that somebody's own transaction keeps, or whose server is away, is tried again."""
    reply = answer.reply
    if type(reply) is Failed and reply.reason in ("busy", "away"):
        raise unexpected(reply, key)
    return answer


def unexpected(reply: Reply, key: bytes) -> DibsError:
    """The error for a reply that is none of those that a command should get."""
    if not isinstance(reply, Failed):
        return DibsError(f"the store answered with {reply!r}", key=key)
    message = f"{key_shown(key)}: {reply.detail}"
    if reply.reason in ("busy", "away"):
        error = BackendUnavailable(message, key=key)
        error.busy = reply.reason == "busy"
        return error
    kinds = {"forbidden": Forbidden, "corrupt": Corrupt, "invalid": InvalidRequest}
    return kinds.get(reply.reason, DibsError)(message, key=key)
