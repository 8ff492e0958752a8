"""How a lease can end before its holder gives it up, and what is said of that."""

from typing import Literal

from dibs.errors import LeaseLost
from dibs.primitives.telling import key_shown

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
        f"the lease on {key_shown(key)} (token {token}) was lost: "
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
