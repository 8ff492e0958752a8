"""Leases that nobody looks after: acquired, renewed and released by their id, by whoever knows it.

For what ends between two of these steps, such as a command line. Nothing renews such a lease; it ends with
its ttl.
"""

from typing import NamedTuple

from dibs.core.names import Kind, key_of
from dibs.core.timing import trusted
from dibs.errors import AcquireTimeout, LeaseLost
from dibs.locks.acquire import Acquiring
from dibs.locks.messages import key_shown, unexpected
from dibs.locks.requests import Ask, Grant, new_id
from dibs.locks.waiting import OnWait
from dibs.model import Failed, Granted, Lost, Release, Released, Renew, Renewed
from dibs.runtime.port import Runtime


class HeldById(NamedTuple):
    """What was acquired. The id is a secret: whoever has it can renew and release the lease."""

    key: bytes
    id: str
    token: int
    slots: tuple[int, ...]
    remaining: float
    """The seconds for which it can be relied on, unless it is renewed."""


class Unattended:
    """The leases of one resource that are held by id."""

    def __init__(self, rt: Runtime, kind: Kind, name: str | bytes) -> None:
        self._rt = rt
        self.key = key_of(kind, name)
        self._wanted: str | None = None
        """The id under which it was asked for last."""

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
    ) -> HeldById:
        """Acquire within `wait` seconds (None: for ever; 0: one try), in turn, under an id that may be given.

        Given again, the id of a lease that stands finds that lease. Interrupted meanwhile, it leaves nothing
        behind; whoever is interrupted just afterwards calls `give_up`. Raises `AcquireTimeout`,
        `BackendUnavailable`.
        """
        rt, wanted = self._rt, lease_id or new_id()
        self._wanted = wanted
        ask = Ask(self.key, owner, ttl, units, capacity, priority, note, detects=False)
        grant = await Acquiring(rt, ask, on_wait, wanted).run(wait)
        self._wanted = grant.id
        if grant.claim_by is not None:
            return await self._claimed(grant, ttl)
        return self._held(grant, grant.deadline)

    def give_up(self) -> None:
        """Give up in the background what was asked for last, whether or not it was granted."""
        if self._wanted is not None:
            self._rt.keeper.abandon(self.key, self._wanted, 0.0)

    async def _claimed(self, grant: Grant, ttl: float) -> HeldById:
        """A pushed grant stands for a short while: have the store confirm it for all of its ttl."""
        try:
            deadline = await self._renewed(grant.id, ttl, grant.token)
        except LeaseLost:
            told = f"its turn for {key_shown(self.key)} came, and passed before it could be taken"
            raise AcquireTimeout(told, key=self.key) from None
        except BaseException:
            self.give_up()
            raise
        return self._held(grant, deadline)

    def _held(self, grant: Grant, deadline: float) -> HeldById:
        left = max(deadline - self._rt.now(), 0.0)
        return HeldById(self.key, grant.id, grant.token, grant.slots, left)

    async def renew(self, lease_id: str, ttl: float) -> float:
        """Have it stand for `ttl` seconds from now, or longer if it did; how long it can be relied on.

        Raises `LeaseLost` if it has ended, `BackendUnavailable`.
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
        raise self._lost(reply.detail if isinstance(reply, Lost) else "")

    async def release(self, lease_id: str) -> None:
        """Give it up. Raises `LeaseLost` if it has ended already, `BackendUnavailable`."""
        reply = (await self._rt.call(Release(self.key, lease_id))).reply
        if isinstance(reply, Failed):
            raise unexpected(reply, self.key)
        if not isinstance(reply, Released):
            raise self._lost()

    def _lost(self, detail: str = "") -> LeaseLost:
        told = f"nothing of {key_shown(self.key)} is held under this id"
        why = detail or "it has ended, or the id, the name or the store is another"
        return LeaseLost(f"{told}: {why}", key=self.key)
