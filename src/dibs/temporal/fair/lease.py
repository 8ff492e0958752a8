"""What a workflow knows of a lease that a broker grants: from what it is told, never from what it guesses.

Pure: no time is read here and nothing is sent. Times are the workflow's own (`workflow.time()`), a broker's
only ever count against each other, so clocks may be apart.
"""

from dataclasses import dataclass
from math import inf
from typing import Self

from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.core.timing import DRIFT, renew_after, trusted
from dibs.model import Failed, Gone, Granted, Lost, Notification, Queued, Refused, Renewed, Reply

LONG = 60.0
"""Of a lease that long, half leaves time enough for a renewal that has to be sent again."""

type Refusal = Refused | Gone | Failed


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a lease is over though its holder did not give it up."""

    reason: str
    """`expired` or `revoked`."""
    detail: str = ""


class BrokeredLease:
    """A lease from its first question to its end."""

    __slots__ = (
        "_queued",
        "deadline",
        "ending",
        "id",
        "mark",
        "refusal",
        "renew_at",
        "slots",
        "token",
        "ttl",
    )

    def __init__(self, lease_id: str, ttl: float) -> None:
        self.id = lease_id
        self.mark = fingerprint(lease_id)
        """What pushes call it."""
        self.ttl = ttl
        self.token = 0
        self.slots: tuple[int, ...] = ()
        self.deadline = -inf
        """Until then it can be relied on."""
        self.renew_at = -inf
        """Then the next renewal is due."""
        self.refusal: Refusal | None = None
        self.ending: Ending | None = None
        self._queued: tuple[float, float] | None = None

    @classmethod
    def taken_over(
        cls, lease_id: str, ttl: float, *, token: int, slots: tuple[int, ...], deadline: float
    ) -> Self:
        """One that an earlier run of this workflow knew as granted."""
        lease = cls(lease_id, ttl)
        lease.token, lease.slots, lease.deadline = token, slots, deadline
        return lease

    @property
    def granted(self) -> bool:
        """It has been granted at some time."""
        return self.token > 0

    def lost(self, now: float) -> bool:
        """It can't be relied on, or not any more."""
        return self.ending is not None or now >= self.deadline

    def hear(self, reply: Reply, sent: float) -> None:
        """What came of a question that was sent then."""
        match reply:
            case Granted():
                self._grant(reply.token, reply.slots, sent, reply.ttl)
            case Renewed():
                self._stand(sent, reply.ttl)
            case Queued():
                self._queued = (sent, reply.now)
            case Lost():
                self.end(Ending(reply.reason, reply.detail))
            case Refused() | Gone() | Failed():
                self.refusal = reply
            case _:
                pass  # the answer to a release or to an inspection

    def hear_push(self, push: Notification, now: float) -> None:
        """What the broker tells without being asked."""
        match push.event:
            case "granted" if not self.granted and is_proven(push, self.id):
                begun = self._begun(push.granted_at, now)
                self._grant(push.token, push.slots, begun, push.claim_timeout)
            case "revoked":
                self.end(Ending("revoked", push.detail))
            case "refused":
                self.refusal = Refused("too_large")
            case _:
                pass  # the head of the queue is told nothing that it could use

    def _begun(self, granted_at: float, now: float) -> float:
        """When a push's grant began by our clock, or a little before."""
        if self._queued is None:
            return min(granted_at, now)
        sent, answered_at = self._queued
        return min(sent + (1 - DRIFT) * max(granted_at - answered_at, 0.0), now)

    def _grant(self, token: int, slots: tuple[int, ...], begun: float, ttl: float) -> None:
        self.token, self.slots = token, slots
        self._stand(begun, ttl)

    def _stand(self, begun: float, ttl: float) -> None:
        """The broker lets it stand for so long; what it said before still holds."""
        self.deadline = max(self.deadline, begun + trusted(ttl))
        self.renew_at = max(self.renew_at, begun + pause(ttl))

    def end(self, ending: Ending) -> None:
        """It is over; only the first reason counts."""
        self.ending = self.ending or ending


def pause(ttl: float) -> float:
    """How long a holder waits before it renews: each renewal stays in its history, so not too often."""
    return ttl / 2 if ttl >= LONG else renew_after(ttl)
