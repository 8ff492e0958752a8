"""A permit in fair mode: renewed by signals to its broker, and lost by the workflow's own time."""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any, Self

from temporalio import workflow

from dibs.config import Duration, safe_ttl
from dibs.core.timing import MIN_TTL
from dibs.model import Notification, Release, Renew, Reply
from dibs.temporal.alarm import Alarm
from dibs.temporal.errors import checked
from dibs.temporal.fair.calls import Broker, BrokerCalls, PendingCall
from dibs.temporal.fair.lease import BrokeredLease
from dibs.temporal.options import CONFIRM_TIMEOUT, PermitPool
from dibs.temporal.permit import Handoff, Permit, may_run_on, to_its_end

FAIR = "fair"
"""The mode of its handoffs."""

AGAIN = 8.0
"""A renewal without an answer is repeated after the ttl divided by this."""


class FairPermit(Permit):
    """Units of a resource, granted in order. `token` rises with every grant of the resource.

    `run_id` is the fingerprint of its lease, which `dibs show` and `dibs revoke` use.
    """

    def __new__(
        cls,
        pool: PermitPool,
        calls: BrokerCalls,
        broker: Broker,
        lease: BrokeredLease,
        *_: Any,
        **about: Any,
    ) -> Self:
        return str.__new__(cls, lease.slots[0])

    def __init__(
        self,
        pool: PermitPool,
        calls: BrokerCalls,
        broker: Broker,
        lease: BrokeredLease,
        alarm: Alarm,
        *,
        until: float,
        renews: bool,
        acquired_at: float | None = None,
    ) -> None:
        super().__init__(
            resource=pool.resource,
            slots=tuple(str(slot) for slot in lease.slots),
            run_id=lease.fingerprint,
            token=lease.token,
            ttl=lease.ttl,
            deadline=lease.deadline,
            acquired_at=acquired_at,
        )
        self._calls = calls
        self._broker = broker
        self._lease = lease
        self._fast = pool.on_holder_close == "fast"
        self._quarantine = pool.quarantine
        self._until = until
        """Time at which `max_hold` ends."""
        self._renews = renews
        self._alarm = alarm
        self._renewing: PendingCall | None = None
        self._asked_at = -inf
        calls.hold(lease.fingerprint, broker.key, len(lease.slots))
        calls.listen(lease.fingerprint, self._notified)
        self._update()
        self._watcher = asyncio.create_task(self._watch())

    async def renew(self, ttl: Duration | None = None) -> None:
        """Let it last for `ttl` seconds from now, or as many as it was acquired with.

        Raises `LeaseLost` if it has ended or no answer comes in time, `NotHeld` if it was given up.
        """
        self._still("renew it")
        with checked():
            wanted = self._ttl if ttl is None else safe_ttl(ttl)
        await self._ask_and_wait(wanted, "renews")
        self._still("renew it")

    async def take_up(self) -> None:
        """Register this run at the broker. Raises `PermitLost` if the broker no longer knows the lease."""
        try:
            await self._ask_and_wait(self._ttl if self._renews else MIN_TTL, "takes up")
        except (Exception, asyncio.CancelledError):
            await self.release()
            raise
        if self.lost:
            await self.release()
            raise self._loss()

    async def release(self) -> bool:
        """Give it up. Returns whether it was held until then. The second time does nothing.

        It is done once the release is in the broker's history, which takes the server only. It waits a
        little longer for the broker's answer. A cancellation meanwhile is raised after that.
        """
        return await self._give_up(0.0)

    async def _leave(self, error: BaseException | None) -> None:
        await self._give_up(self._quarantine if self.lost or may_run_on(error) else 0.0)

    async def _give_up(self, keep: float) -> bool:
        """Release it, also if it is lost: the broker can still know a lease past its deadline."""
        if self._over:
            return False
        self._calls.raise_if_evicted()
        held = not self.lost
        self._close("released")
        try:
            await to_its_end(self._say_released(keep))
        finally:
            self._alarm.close()
        return held

    async def detach(self) -> Handoff:
        self._still("detach it")
        self._close("detached")
        self._alarm.close()
        if self._renewing is not None:  # it would redirect notifications to this run
            await to_its_end(self._renewing.wait_over())
        return Handoff(
            resource=self._resource,
            slots=list(self._slots),
            run_id=self._run_id,
            token=self._token,
            ttl=self._ttl,
            mode=FAIR,
            acquired_at=self._acquired_at,
            until=self._until,
            renews=self._renews,
            more={"lease": self._lease.id, "deadline": self._lease.deadline},
        )

    # -- messages from the broker -------------------------------------------------------------------

    def _notified(self, given: Notification) -> None:
        self._lease.take_notification(given, workflow.time())
        self._update()

    def _answer(self, replies: Sequence[Reply], sent: float) -> None:
        self._lease.take_reply(replies[0], sent)
        self._update()

    def _update(self) -> None:
        self._follow_lease()
        self._alarm.ring()

    def _follow_lease(self) -> None:
        self._deadline = min(self._lease.deadline, self._until)
        if self._lease.ending is not None:
            self._lose(self._lease.ending.reason, self._lease.ending.detail)

    # -- keeping it ---------------------------------------------------------------------------------

    def _ask(self, ttl: float, alarm: Alarm) -> PendingCall:
        renew = Renew(self._broker.key, self._lease.id, ttl)
        self._asked_at = workflow.time()
        self._renewing = PendingCall(self._broker, [renew], self._answer, alarm, fast=self._fast)
        return self._calls.send(self._renewing)

    async def _ask_and_wait(self, ttl: float, what: str) -> None:
        call = self._ask(ttl, Alarm())
        try:
            await call.wait_settled(self._deadline, f"{what} {self._named()}")
        finally:
            call.alarm.close()
        if self._has_no_broker():
            self._lose("closed", "its broker is gone")

    async def _watch(self) -> None:
        """Renew in time, and report a loss at the deadline at the latest."""
        while True:
            self._follow_lease()  # a reminder of the acquire may be answered only now
            if self.lost:
                break
            if self._has_no_broker():
                return self._lose("closed", "its broker is gone")
            now = workflow.time()
            due = self._due()
            if now >= due:
                self._ask(self._ttl, self._alarm)
                due = self._due()
            await self._alarm.wait(min(due, self._deadline), f"keeps {self._named()}")
        self._lose("max_hold" if self._deadline >= self._until else "expired")

    def _due(self) -> float:
        """Time of the next renewal."""
        if not self._renews or self._lease.deadline >= self._until:
            return inf
        return max(self._lease.renew_at, self._asked_at + self._ttl / AGAIN)

    def _has_no_broker(self) -> bool:
        """Whether somebody has ended the broker, and so all its leases."""
        last = self._renewing
        return last is not None and last.over and not last.delivered and last.trouble is None

    def _close(self, how: str) -> None:
        self._over = how
        self._watcher.cancel()
        self._calls.leave(self._lease.fingerprint)

    async def _say_released(self, keep: float) -> None:
        """Send the release and wait for the answer, which else could disturb the run's last step."""
        release = Release(self._broker.key, self._lease.id, retain=keep)
        call = self._calls.send(PendingCall(self._broker, [release], alarm=self._alarm))
        await call.wait_over()
        if not call.settled:  # a timer that runs anyway ends the wait too
            until = inf if self._alarm.is_set else workflow.time() + CONFIRM_TIMEOUT
            await self._alarm.wait(until, f"releases {self._named()}")
        if call.trouble is not None:
            workflow.logger.warning(
                "%s could not be released, and is free in %.0f s at the latest: %s",
                self._named(),
                self._ttl,
                call.trouble,
            )
