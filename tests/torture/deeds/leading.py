"""Leader elections: with a block, with a campaign in the background, and for a function."""

from collections.abc import Callable
from typing import Any

from dibs.errors import NotHeld
from tests.torture.hand import Hand
from tests.torture.kinds import SimCampaign, SimElection

ELECTIONS = {
    "main": {"ttl": 1.5, "renew_deadline": 0.9, "retry": 0.2},
    "spare": {"ttl": 10.0, "renew_deadline": 6.0, "retry": 1.5},
    "near": {"ttl": 2.0, "renew_deadline": 1.9, "retry": 0.4},
}
"""Names and deadlines; one of them is nearer to the store's than its margin."""


class Candidate:
    """An election of one hand, and what is told of its terms."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.name = hand.draw.choice(tuple(ELECTIONS))
        hand.tries += 1
        self.note = f"{hand.process.number}.{hand.number}.{hand.tries}"
        self.election: Any = SimElection(
            self.name,
            note=self.note,
            on_started=self.started,
            on_stopped=self.stopped,
            env_load=False,
            **ELECTIONS[self.name],  # type: ignore[arg-type]
        )
        self.election.runtime = hand.runtime
        self.election.hand = hand
        hand.keys.append(self.election.key.decode())

    def started(self, term: Any) -> None:
        self.hand.tell("started", term)

    async def stopped(self, term: Any) -> None:
        """It takes a moment, and nobody else leads before it is over."""
        self.hand.tell("stopped", term)
        try:
            await self.hand.sleep(self.hand.draw.choice((0.0, 0.02)))
        finally:
            self.hand.tell("over", term)

    def look(self) -> None:
        """Once it is over nothing of it is left."""
        hand, election = self.hand, self.election
        if hand.process.alive:
            hand.world.look_for(hand.process, election.key, self.note, election.ttl)

    async def govern(self, term: Any, leads: Callable[[], bool]) -> None:
        """Lead for a while; whatever ends it, the last step takes a moment."""
        hand, draw = self.hand, self.hand.draw
        length = draw.choices((0.02, 0.3, 2 * self.election.ttl), (80, 18, 2))[0]
        try:
            for _ in range(3):
                await hand.sleep(0.0 if hand.world.closing else length / 3)
                if not leads():
                    return
                hand.believed(term)
                if await hand.check(term):
                    hand.write(term)
                if draw.random() < 0.1 and self.election.resign():
                    hand.tell("resigned", term)
                    await hand.sleep(0.01)
        finally:
            try:
                await hand.sleep(draw.choice((0.0, 0.05)))
            finally:
                hand.tell("ended", term)


async def lead(hand: Hand) -> None:
    """As `async with election as term` does."""
    candidate = Candidate(hand)
    election = candidate.election
    try:
        term = await election._enter_block()
        try:
            await candidate.govern(term, election.is_leader)
        except BaseException as error:
            await election._take_entered()._leave(error)
            raise
        await election._take_entered()._leave(None)
    finally:
        candidate.look()


async def run(hand: Hand) -> None:
    """Lead with a function until it has returned."""
    candidate = Candidate(hand)

    async def function(term: Any) -> None:
        await candidate.govern(term, candidate.election.is_leader)

    try:
        await candidate.election._run(function, None)
    finally:
        candidate.look()


async def campaign(hand: Hand) -> None:
    """Stand in the background, lead where that is guarded, and step down."""
    candidate = Candidate(hand)
    standing = SimCampaign(candidate.election)
    await standing._start()
    try:
        for _ in range(hand.draw.choice((1, 1, 2))):
            if await standing._wait(hand.draw.choice((0.0, 1.0, 30.0))):
                await guarded(candidate, standing)
    finally:
        await standing._finish()
        candidate.look()


async def guarded(candidate: Candidate, standing: SimCampaign) -> None:
    """As `async with campaign.guard()` does."""
    guard = standing.guard()
    try:
        term = guard._begin()
    except NotHeld:
        return  # it has ended in this very moment
    try:
        await candidate.govern(term, standing.is_leader)
    except BaseException as error:
        guard._end(error)
        raise
    guard._end(None)
