"""The proof in a `granted` notification: only the store and the waiter know the lease id in it.

It is the hash of these bytes, in hexadecimal: token, time of the grant, claim timeout and the key's length
as big-endian doubles, the key, the slots as decimal numbers with commas between, and the lease id. The id
comes last, so that nobody can derive the proof of a longer message. The hash is SHA-256, or SHA-1 where the
store has no other (Redis); the proof's length tells which.
"""

from collections.abc import Callable
from functools import cache
from struct import error, pack
from typing import Any

from dibs.model import Notification


def proof_of(
    key: bytes,
    lease_id: str,
    token: int,
    slots: tuple[int, ...],
    granted_at: float,
    claim_timeout: float,
) -> str:
    """Return the proof of this grant for the waiter with this lease id."""
    proof: str = _hashes()[0](
        _said(key, lease_id, token, slots, granted_at, claim_timeout)
    ).hexdigest()
    return proof


def is_proven(push: Notification, lease_id: str) -> bool:
    """Whether the store itself has sent this grant, just as it is."""
    sha256, sha1, same = _hashes()
    try:
        said = _said(
            push.key, lease_id, push.token, push.slots, push.granted_at, push.claim_timeout
        )
        proof = push.proof.encode(errors="replace")
    except (error, AttributeError, OverflowError, TypeError):
        return False  # anybody may have written it
    digest = sha1(said, usedforsecurity=False) if len(proof) == 40 else sha256(said)
    return same(digest.hexdigest().encode(), proof)


def _said(
    key: bytes,
    lease_id: str,
    token: int,
    slots: tuple[int, ...],
    granted_at: float,
    claim_timeout: float,
) -> bytes:
    numbers = pack(">4d", token, granted_at, claim_timeout, len(key))
    return numbers + key + ",".join(map(str, slots)).encode() + lease_id.encode()


@cache
def _hashes() -> tuple[Callable[..., Any], Callable[..., Any], Callable[[bytes, bytes], bool]]:
    """Loads OpenSSL, which an uncontended shell command never needs."""
    from hashlib import sha1, sha256
    from hmac import compare_digest

    return sha256, sha1, compare_digest
