"""Turns on a leader election: stand, lead for a term, hand over."""

from typing import Any

from dibs.errors import BackendUnavailable, LeaseLost, NotHeld
from dibs.testing.torture.hands import LONG, Hand
from dibs.testing.torture.turns.turns import Turns

RENEW_DEADLINE, RETRY = 0.7, 0.15
"""In ttls."""
TERMS = (0.002, 0.02), (40, 55)
"""Steps of a term take longer than those of other leases: it is renewed more often, too."""
RESIGNS = 0.3


class Candidacy:
    """What one candidate is told of its terms is what is recorded."""

    def __init__(self, hand: Hand, key: bytes) -> None:
        self.invoked = hand.asking(key)
        self.led = False
        self._hand = hand

    def started(self, term: Any) -> None:
        self.led = True
        self._hand.granted(term, self.invoked)

    def stopped(self, term: Any) -> None:
        self._hand.releasing(term)
        self.invoked = self._hand.now()


class LeaderTurns(Turns):
    """Lead in a block of its own, or by a campaign in the background."""

    def described(self, name: str) -> Any:
        return self._election()

    def _election(self, **callbacks: Any) -> Any:
        ttl = self.how["ttl"]
        timing = {"ttl": ttl, "renew_deadline": RENEW_DEADLINE * ttl, "retry": RETRY * ttl}
        return self.client.leader_election(self.name, env_load=False, **timing, **callbacks)

    async def take(self, hand: Hand) -> None:
        stands = Candidacy(hand, self.key)
        leader = self._election(on_started=stands.started, on_stopped=stands.stopped)
        try:
            if hand.draw.random() < 0.5:
                await self._in_a_block(hand, leader)
            else:
                await self._in_the_background(hand, leader)
        except BackendUnavailable:
            return hand.cut_off()
        except (LeaseLost, NotHeld, hand.world.interrupted):
            pass
        if not stands.led:
            hand.gave_up(stands.invoked, self.key)

    async def _in_a_block(self, hand: Hand, leader: Any) -> None:
        async with hand.world.block(leader) as term:
            await self._lead(hand, leader, term)

    async def _in_the_background(self, hand: Hand, leader: Any) -> None:
        async with hand.world.block(leader.campaign()) as campaign:
            leads = await hand.get(campaign.wait(hand.patience))
            hand.interruptible = False
            if leads:
                async with hand.world.block(campaign.guard()) as term:
                    await self._lead(hand, leader, term)

    async def _lead(self, hand: Hand, leader: Any, term: Any) -> None:
        await hand.work(term, lengths=(TERMS, LONG))
        if hand.draw.random() < RESIGNS:
            leader.resign()
        await hand.work(term, lengths=(TERMS, LONG))
