"""A workflow's knowledge about a lease of a broker, from replies and notifications.

Pure: it reads no clock and sends nothing. Times are the workflow's own (`workflow.time()`). Times of the
broker are only compared with each other, so the clocks can differ.
"""

from dataclasses import dataclass
from math import inf
from typing import Self

from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.core.timing import DRIFT, renew_after, trusted
from dibs.model import Failed, Gone, Granted, Lost, Notification, Queued, Refused, Renewed, Reply

LONG = 60.0
"""Seconds. Half of a lease this long leaves enough time to repeat a renewal."""

type Refusal = Refused | Gone | Failed


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a lease ended before its holder gave it up."""

    reason: str
    """`expired` or `revoked`."""
    detail: str = ""


REPLACED = Ending("expired", "its broker was ended, and another lease has its place")


class BrokeredLease:
    """A lease from its first call to its end."""

    def __init__(self, lease_id: str, ttl: float) -> None:
        self.id: str = lease_id
        self.fingerprint: str = fingerprint(lease_id)
        """The fingerprint, by which notifications name it."""
        self.ttl: float = ttl
        self.token: int = 0
        self.slots: tuple[int, ...] = ()
        self.deadline: float = -inf
        """Time at which the holder stops trusting it."""
        self.renew_at: float = -inf
        """Time of the next renewal."""
        self.refusal: Refusal | None = None
        self.ending: Ending | None = None
        self._queued: tuple[float, float] | None = None

    @classmethod
    def taken_over(
        cls, lease_id: str, ttl: float, *, token: int, slots: tuple[int, ...], deadline: float
    ) -> Self:
        """A lease that was granted to an earlier run of this workflow."""
        lease = cls(lease_id, ttl)
        lease.token, lease.slots, lease.deadline = token, slots, deadline
        return lease

    @property
    def granted(self) -> bool:
        """Whether it was ever granted."""
        return self.token > 0

    def lost(self, now: float) -> bool:
        """Whether it was not granted, or has ended."""
        return self.ending is not None or now >= self.deadline

    def take_reply(self, reply: Reply, sent: float) -> None:
        """Take the reply to a command that was sent then.

        A broker that was started anew knows nothing of the lease. If a reminder has queued the id there, or
        another token is granted to it, the lease is lost.
        """
        match reply:
            case Granted() if self.granted and reply.token != self.token:
                self.end(REPLACED)
            case Granted():
                self._grant(reply.token, reply.slots, sent, reply.ttl)
            case Renewed():
                self._stand(sent, reply.ttl)
            case Queued() if self.granted:
                self.end(REPLACED)
            case Queued():
                self._queued = (sent, reply.now)
            case Lost():
                self.end(Ending(reply.reason, reply.detail))
            case Refused() | Gone() | Failed():
                self.refusal = reply
            case _:
                pass  # the answer to a release or to an inspection

    def take_notification(self, given: Notification, now: float) -> None:
        """Take a notification."""
        match given.event:
            case "granted" if not self.granted and is_proven(given, self.id):
                begun = self._begun(given.granted_at, now)
                self._grant(given.token, given.slots, begun, given.claim_timeout)
            case "revoked":
                self.end(Ending("revoked", given.detail))
            case "refused":
                self.refusal = Refused("too_large")
            case _:
                pass  # being first in the queue changes nothing for a workflow

    def _begun(self, granted_at: float, now: float) -> float:
        """Start of a notified grant by our clock, or a little earlier."""
        if self._queued is None:
            return min(granted_at, now)
        sent, answered_at = self._queued
        return min(sent + (1 - DRIFT) * max(granted_at - answered_at, 0.0), now)

    def _grant(self, token: int, slots: tuple[int, ...], begun: float, ttl: float) -> None:
        self.token, self.slots = token, slots
        self._stand(begun, ttl)

    def _stand(self, begun: float, ttl: float) -> None:
        """Extend it. A confirmation never shortens it."""
        self.deadline = max(self.deadline, begun + trusted(ttl))
        self.renew_at = max(self.renew_at, begun + pause(ttl))

    def end(self, ending: Ending) -> None:
        """Note that it is over. Only the first reason counts."""
        self.ending = self.ending or ending


def pause(ttl: float) -> float:
    """Seconds between renewals. Each one stays in the holder's history, so they are not too frequent."""
    return ttl / 2 if ttl >= LONG else renew_after(ttl)
