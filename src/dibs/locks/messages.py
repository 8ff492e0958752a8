"""What people are told: who holds it, why an acquire was refused, how a lease was lost, what to do next."""

from typing import Literal

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
    """A key as people know it: its name, and its kind where it isn't a lock."""
    kind, name = split_key(key)
    return shown(name) if kind == "lock" else f"{kind} {shown(name)}"


def format_duration(duration: float) -> str:
    """A duration, no more exact than helps."""
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.0f} h"


def describe_holder(holder: Holder) -> str:
    """One holder, in a sentence's middle."""
    if holder.state == "retained":
        return f"retained after its last hold, free in {format_duration(holder.expires_in)}"
    note = f" ({printable(holder.note)})" if holder.note else ""
    return (
        f"held by {printable(holder.owner)}{note} for {format_duration(holder.held_for)} "
        f"(token {holder.token}, expires in {format_duration(max(holder.expires_in, 0.0))})"
    )


def describe_holders(key: bytes, holders: tuple[Holder, ...], ahead: int | None) -> str:
    """Who is in the way of a key."""
    name = format_key(key)
    if not holders:
        told = f"{name} is not free"
    elif len(holders) == 1:
        told = f"{name} is {describe_holder(holders[0])}"
    else:
        told = f"{name} is taken by {len(holders)} holders: " + "; ".join(
            describe_holder(holder) for holder in holders
        )
    if ahead:
        told += f"; {ahead} {'is' if ahead == 1 else 'are'} ahead of you"
    return told


type LossReason = Literal["expired", "revoked", "max_hold", "closed", "resigned"]

LOSSES = frozenset({"expired", "revoked", "max_hold", "closed", "resigned"})

_WHY = {
    "expired": "no renewal got through before its deadline",
    "revoked": "it was revoked",
    "max_hold": "it was held for as long as max_hold allows",
    "closed": "its client was closed",
    "resigned": "its leader resigned",
}

_SINCE = {
    "expired": "; another holder can get it now",
    "revoked": "; another holder can get it now",
    "max_hold": "; it is released when the block ends, or expires with its ttl",
    "closed": "; released",
    "resigned": "; released",
}

_NOT_RENEWED = "it was not renewed in time (auto_renew is off)"

FORGOTTEN = "the store has no such lease any more: it ended there early, or its data was lost"
"""A holder within its deadline was told so by the store itself."""

NEVER_WAS = "the transaction that it was acquired in did not commit"
"""The store knows nothing of a lease at its first renewal."""

_TOLD = frozenset({FORGOTTEN, NEVER_WAS})
"""These say all that there is to say."""


def loss_of(key: bytes, token: int, reason: LossReason, detail: str, *, renews: bool) -> LeaseLost:
    """The error for a lease that was lost; `detail` is what is known besides, or empty."""
    return LeaseLost(
        f"the lease on {format_key(key)} (token {token}) was lost: "
        f"{_cause(reason, detail, renews)}{_SINCE[reason]}",
        reason=reason,
        key=key,
    )


def _cause(reason: LossReason, detail: str, renews: bool) -> str:
    if detail in _TOLD:
        return detail
    if detail:
        return f"{_WHY[reason]} ({detail})"
    return _WHY[reason] if renews or reason != "expired" else _NOT_RENEWED


ASIDE = 3.0
"""Seconds that a store has for what is said beside the wait: who is in the way, and that we leave."""


def refusal(key: bytes, units: int, reply: Refused) -> DibsError:
    """The error for units that others hold, or that are more than the capacity."""
    if reply.reason == "too_large":
        told = f"cannot acquire {units} units of {format_key(key)}: its last declared capacity is smaller"
        return DibsError(told, key=key)
    return AcquireTimeout(
        describe_holders(key, reply.holders, None),
        key=key,
        holders=reply.holders,
        retry_after=reply.recheck_in,
    )


def timed_out(
    key: bytes, holders: tuple[Holder, ...], wait: float | None, ahead: int | None
) -> AcquireTimeout:
    """The error after a wait of so many seconds, with so many ahead at the end."""
    return AcquireTimeout(
        f"{describe_holders(key, holders, ahead)}; gave up after {_rounded(wait)} s",
        key=key,
        holders=holders[:8],
        position=ahead,
        retry_after=min((holder.expires_in for holder in holders), default=None),
    )


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
    why = detail or "it has ended, or the id, the name or the store is another"
    return LeaseLost(f"nothing of {format_key(key)} is held under this id: {why}", key=key)


def _rounded(wait: float | None) -> str:
    """Part of a longer wait may have been spent before: no more digits than help."""
    return "?" if wait is None else f"{round(wait, 1 if wait >= 1 else 2):g}"


def raise_if_busy(reply: Reply, key: bytes) -> None:
    """Raise `BackendUnavailable` for a key that a user's transaction keeps, or whose server is away."""
    if type(reply) is Failed and reply.reason in ("busy", "away"):
        raise unexpected(reply, key)


def unexpected(reply: Reply, key: bytes) -> DibsError:
    """The error for a reply that is none of those that a command should get."""
    if not isinstance(reply, Failed):
        return DibsError(f"the store answered with {reply!r}", key=key)
    message = f"{format_key(key)}: {reply.detail}"
    if reply.reason in ("busy", "away"):
        error = BackendUnavailable(message, key=key)
        error.busy = reply.reason == "busy"
        return error
    kinds = {"forbidden": Forbidden, "corrupt": Corrupt, "invalid": InvalidRequest}
    return kinds.get(reply.reason, DibsError)(message, key=key)
