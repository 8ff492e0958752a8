"""Messages for people: who holds it, why an acquire was refused, how a lease was lost, what to do next."""

from typing import Literal, get_args

from dibs.core.names import printable, shown, split_key
from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    Corrupt,
    Deadlock,
    DibsError,
    Forbidden,
    InvalidRequest,
    LeaseLost,
)
from dibs.model import Failed, Holder, Refused, Reply


def format_key(key: bytes) -> str:
    """A key for people: its name, and its kind unless that is `lock`."""
    kind, name = split_key(key)
    return shown(name) if kind == "lock" else f"{kind} {shown(name)}"


def format_duration(duration: float) -> str:
    """A duration, rounded."""
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.0f} h"


def describe_holder(holder: Holder) -> str:
    """Describe a holder, as the predicate of a sentence."""
    if holder.state == "retained":
        return f"retained after its last hold, free in {format_duration(holder.expires_in)}"
    note = f" ({printable(holder.note)})" if holder.note else ""
    return (
        f"held by {printable(holder.owner)}{note} for {format_duration(holder.held_for)} "
        f"(token {holder.token}, expires in {format_duration(max(holder.expires_in, 0.0))})"
    )


def describe_holders(key: bytes, holders: tuple[Holder, ...], ahead: int | None) -> str:
    """The holders of a key, and how many waiters are ahead."""
    name = format_key(key)
    if not holders:
        text = f"{name} is not free"
    elif len(holders) == 1:
        text = f"{name} is {describe_holder(holders[0])}"
    else:
        each = "; ".join(map(describe_holder, holders))
        text = f"{name} is taken by {len(holders)} holders: {each}"
    if ahead:
        text += f"; {ahead} {'is' if ahead == 1 else 'are'} ahead of you"
    return text


type LossReason = Literal["expired", "revoked", "max_hold", "closed", "resigned"]

LOSSES: frozenset[str] = frozenset(get_args(LossReason.__value__))

_WHY = {
    "expired": "no renewal got through before its deadline",
    "revoked": "it was revoked",
    "max_hold": "it was held for as long as max_hold allows",
    "closed": "its client was closed",
    "resigned": "its leader resigned",
}

_SINCE = {
    "expired": "; another holder can get it once it has expired in the store",
    "revoked": "; another holder can get it when it ends in the store",
    "max_hold": "; it is released when the block ends, or expires with its ttl",
    "closed": "; released",
    "resigned": "; released",
}

_NOT_RENEWED = "it was not renewed in time (auto_renew is off)"

FORGOTTEN = "the store has no such lease any more: it ended there early, or its data was lost"
"""Detail of a loss that the store reports before the deadline."""

NEVER_WAS = "the transaction that it was acquired in did not commit"
"""Detail of a loss that the store reports at the first renewal of such a lease."""


def loss_of(
    key: bytes,
    token: int,
    reason: LossReason,
    detail: str,
    *,
    renews: bool,
    is_readable: bool = True,
) -> LeaseLost:
    """The error for a lease that was lost; `detail` adds to the reason, or is empty.

    While the store's data is not readable, nobody else gets the lock either.
    """
    since = _SINCE[reason] if is_readable else ""
    if since and detail == FORGOTTEN:
        since = "; another holder can have it already"
    return LeaseLost(
        f"the lease on {format_key(key)} (token {token}) was lost: "
        f"{_cause(reason, detail, renews)}{since}",
        reason=reason,
        key=key,
    )


def _cause(reason: LossReason, detail: str, renews: bool) -> str:
    if detail in (FORGOTTEN, NEVER_WAS):  # each replaces the generic reason
        return detail
    if detail:
        return f"{_WHY[reason]} ({detail})"
    return _WHY[reason] if renews or reason != "expired" else _NOT_RENEWED


ASIDE = 3.0
"""Seconds that a store has for calls beside a wait: to ask for the holders, and to leave the queue."""


def not_acquired(
    key: bytes,
    holders: tuple[Holder, ...],
    gave_up: str = "",
    position: int | None = None,
    retry_after: float | None = None,
) -> AcquireTimeout:
    """The error that names the holders; `gave_up` says after how long, if there was a wait."""
    message = describe_holders(key, holders, position) + (f"; {gave_up}" if gave_up else "")
    return AcquireTimeout(
        message, key=key, holders=holders, position=position, retry_after=retry_after
    )


IS_MOVING = "its directory is moving to another store, and nothing new is granted there until then"


def refusal(key: bytes, units: int, reply: Refused) -> DibsError:
    """The error for units that others hold, that are more than the capacity, or whose directory moves."""
    if reply.reason == "moving":
        error = BackendUnavailable(
            f"{format_key(key)}: {IS_MOVING}", key=key, retry_after=reply.recheck_in
        )
        error.moving = True
        return error
    if reply.reason == "too_large":
        return DibsError(
            f"cannot acquire {units} units of {format_key(key)}: its last declared capacity is smaller",
            key=key,
        )
    return not_acquired(key, reply.holders, retry_after=reply.recheck_in)


def timed_out(
    key: bytes, holders: tuple[Holder, ...], wait: float | None, ahead: int | None
) -> AcquireTimeout:
    """The error after a wait of `wait` seconds, with `ahead` waiters before it at the end."""
    retry_after = min((holder.expires_in for holder in holders), default=None)
    error = not_acquired(key, holders, f"gave up after {_rounded(wait)} s", ahead, retry_after)
    error.holders = holders[:8]
    return error


def upgrades_deadlocked(key: bytes, position: int) -> Deadlock:
    """The error for the later one of two readers that wait to upgrade."""
    return Deadlock(
        f"{format_key(key)}: another reader waits to upgrade already, and each would wait for the other to "
        "leave: release this lease, and acquire for writing",
        key=key,
        position=position,
    )


def nothing_held(key: bytes, detail: str = "") -> LeaseLost:
    """The error for an id under which nothing is held; `detail` is the store's reason, if it gave one."""
    why = detail or "it has ended, or the id, the name or the store is wrong"
    return LeaseLost(f"this id has no lease on {format_key(key)}: {why}", key=key)


def _rounded(wait: float | None) -> str:
    """A wait in seconds. Part of a longer one may have been spent before, so it is not exact."""
    return "?" if wait is None else f"{round(wait, 1 if wait >= 1 else 2):g}"


def raise_if_busy(reply: Reply, key: bytes) -> None:
    """Raise `BackendUnavailable` if a transaction blocks the key, or its server is away: try again."""
    if type(reply) is Failed and reply.reason in ("busy", "away"):
        raise unexpected(reply, key)


def is_away(reply: Reply) -> bool:
    """Whether the store of a server did not answer it. The command may have been applied all the same."""
    return isinstance(reply, Failed) and reply.reason == "away"


def unexpected(reply: Reply, key: bytes) -> DibsError:
    """The error for a reply that the command should not get."""
    if not isinstance(reply, Failed):
        return DibsError(f"the store answered with {reply!r}", key=key)
    message = f"{format_key(key)}: {reply.detail}"
    if reply.reason in ("busy", "away"):
        error = BackendUnavailable(message, key=key)
        error.busy = reply.reason == "busy"
        return error
    kinds = {"forbidden": Forbidden, "corrupt": Corrupt, "invalid": InvalidRequest}
    return kinds.get(reply.reason, DibsError)(message, key=key)
