"""Leases by their ids: acquired, renewed and released in several steps, with nothing between them."""

from typing import NamedTuple

from dibs.core.names import Kind, key_of
from dibs.core.timing import trusted
from dibs.errors import AcquireTimeout, LeaseLost
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.lease import give_up
from dibs.locks.messages import format_key, nothing_held, unexpected
from dibs.locks.requests import AcquireRequest, Grant, new_id
from dibs.locks.waiting import OnWait
from dibs.model import Failed, Granted, Lost, Release, Released, Renew, Renewed
from dibs.runtime.port import Runtime


class ManualLease(NamedTuple):
    """A lease that nobody renews. The id is a secret: it is enough to renew and release the lease."""

    key: bytes
    id: str
    token: int
    slots: tuple[int, ...]
    remaining: float
    """Seconds for which it can be trusted, unless it is renewed."""


class ManualLeases:
    """The leases on one resource that are acquired, renewed and released by their ids.

    For command lines, which end between two of these steps. Nothing renews such a lease in the background;
    it ends with its ttl.
    """

    def __init__(self, rt: Runtime, kind: Kind, name: str | bytes) -> None:
        self._rt = rt
        self.key: bytes = key_of(kind, name)
        self._latest: str | None = None
        """The id of the latest acquire."""

    async def acquire(
        self,
        owner: str,
        ttl: float,
        *,
        units: int = 1,
        capacity: int = 1,
        note: str = "",
        priority: int = 0,
        wait: float | None = 0.0,
        lease_id: str | None = None,
        on_wait: OnWait | None = None,
    ) -> ManualLease:
        """Acquire within `wait` seconds (None: no limit; 0: one try), under an id that may be given.

        The id of a lease that is held returns that lease. An interrupted acquire leaves nothing behind;
        after an interrupt just afterwards call `give_up`. Raises `AcquireTimeout`, `BackendUnavailable`.
        """
        rt, self._latest = self._rt, lease_id or new_id()
        request = AcquireRequest(
            self.key, owner, ttl, units, capacity, priority, note, detects=False
        )
        grant = await AcquireAttempt(rt, request, on_wait, self._latest).run(wait)
        self._latest = grant.id
        deadline = grant.deadline
        if grant.claim_by is not None:
            deadline = await self._claim(grant, ttl)
        left = max(deadline - rt.now(), 0.0)
        return ManualLease(self.key, grant.id, grant.token, grant.slots, left)

    def give_up(self) -> None:
        """Give up the id of the latest acquire in the background, whether or not it was granted."""
        if self._latest is not None:
            give_up(self._rt, self.key, self._latest, doubtful=False)

    async def _claim(self, grant: Grant, ttl: float) -> float:
        """Have the store confirm a grant by notification for all of its ttl; return its deadline."""
        try:
            return await self._renewed(grant.id, ttl, grant.token)
        except LeaseLost:
            told = f"its turn for {format_key(self.key)} came, and passed before it could be taken"
            raise AcquireTimeout(told, key=self.key) from None
        except BaseException:
            self.give_up()
            raise

    async def renew(self, lease_id: str, ttl: float) -> float:
        """Renew it for `ttl` seconds from now; return the seconds for which it can be trusted.

        Never shortens it. Raises `LeaseLost` if it has ended, and `BackendUnavailable`.
        """
        return max(await self._renewed(lease_id, ttl) - self._rt.now(), 0.0)

    async def _renewed(self, lease_id: str, ttl: float, token: int | None = None) -> float:
        answer = await self._rt.call(Renew(self.key, lease_id, ttl))
        reply = answer.reply
        is_another = isinstance(reply, Granted) and token not in (None, reply.token)
        if isinstance(reply, Renewed | Granted) and not is_another:
            return answer.sent + trusted(reply.ttl)
        if isinstance(reply, Failed):
            raise unexpected(reply, self.key)
        raise nothing_held(self.key, reply.detail if isinstance(reply, Lost) else "")

    async def release(self, lease_id: str) -> None:
        """Release it. Raises `LeaseLost` if it has ended already, and `BackendUnavailable`."""
        reply = (await self._rt.call(Release(self.key, lease_id))).reply
        if isinstance(reply, Failed):
            raise unexpected(reply, self.key)
        if not isinstance(reply, Released):
            raise nothing_held(self.key)
