"""Turns on a task lock: try to start, work, fail now and then; between two starts lies `min_hold`."""

from typing import Any

from dibs.errors import BackendUnavailable, LeaseLost
from dibs.testing.torture.hands import LONG, Hand
from dibs.testing.torture.turns.turns import Turns

MIN_HOLD, MAX_HOLD = 0.3, 1.5
"""In ttls."""
TASKS = (0.002, 0.05), (40, 55)
"""Steps of a task take longer than those of other leases, and there are less of them."""
FAILURES = 0.3


class Failed(Exception):
    """A task failed, as tasks do."""


class TaskLockTurns(Turns):
    """Start if it may, check and write, end well or not."""

    def described(self, name: str) -> Any:
        ttl = self.how["ttl"]
        self.min_hold = MIN_HOLD * ttl
        return self.client.task_lock(self.name, self.min_hold, MAX_HOLD * ttl)

    async def take(self, hand: Hand) -> None:
        invoked = hand.now()
        try:
            lease = await hand.get(self.resource.try_acquire())
        except BackendUnavailable:
            return hand.cut_off()
        if lease is None:
            hand.refused(invoked, self.key)
            return await hand.world.sleep(hand.draw.random() * self.min_hold / 4)
        hand.granted(lease, invoked, min_hold=self.min_hold)
        try:
            async with hand.world.block(lease):
                await self._run(hand, lease)
        except (LeaseLost, Failed):
            pass

    async def _run(self, hand: Hand, lease: Any) -> None:
        try:
            await hand.work(lease, lengths=(TASKS, LONG))
            if hand.draw.random() < FAILURES:
                raise Failed
        finally:
            hand.releasing(lease)
