"""Which slots a waiter tries, and when again: bounded in events however long it waits. Pure."""

from collections.abc import Collection, Sequence
from random import Random

PROBE = 5
"""Events of one failed try: start initiated, start failed, and a workflow task's three."""
PAUSE = 5
"""Events of one pause: the timer's two, and a workflow task's three."""

AT_ONCE = 200
"""So many events a waiter may spend at once …"""
EACH_SECOND = 0.2
""" … and so many more for each second that it has waited: an hour's wait comes to 920."""

FIRST_ROUND = 16
"""So many slots are tried at first, at most …"""
NEXT_ROUNDS = 4
""" … and so many in each later round, as long as there are events for them."""

LONG_HISTORY = 300.0
"""The pause where the server already advises the workflow to continue as new."""


class Prober:
    """The order and the pace of one acquire's probes.

    Slots come in shuffled order, each once before any comes again. The random numbers are the
    workflow's own, so that a replay draws the same.
    """

    def __init__(
        self, slots: Sequence[str], random: Random, began: float, *, backoff: float, longest: float
    ) -> None:
        self._slots = list(slots)
        self._random = random
        self._began = began
        self._pause = backoff
        self._longest = longest
        self._deck: list[str] = []
        self._spent = 0
        self._rounds = 0

    def round(self, now: float, mine: Collection[str] = ()) -> list[str]:
        """The slots to try now, at least one; those in `mine` are known to be taken."""
        most = FIRST_ROUND if self._rounds == 0 else NEXT_ROUNDS
        affordable = int((self._left(now) - PAUSE) // PROBE)
        wanted = max(1, min(most, affordable))
        self._rounds += 1
        drawn: list[str] = []
        while len(drawn) < wanted:
            left = [slot for slot in self._slots if slot not in mine and slot not in drawn]
            if not left:
                break
            drawn.append(self._draw(left))
        return drawn

    def probed(self) -> None:
        """One try was made."""
        self._spent += PROBE

    def pause(self, now: float, *, history_is_long: bool = False) -> float:
        """How long to wait until the next round."""
        self._spent += PAUSE
        longest = min(self._pause, self._longest)
        self._pause = min(2 * self._pause, max(self._longest, self._pause))
        jittered = longest * (0.5 + 0.5 * self._random.random())
        needed = (PAUSE + PROBE - self._left(now)) / EACH_SECOND
        return max(jittered, needed, LONG_HISTORY if history_is_long else 0.0)

    def _left(self, now: float) -> float:
        return AT_ONCE + EACH_SECOND * (now - self._began) - self._spent

    def _draw(self, left: Sequence[str]) -> str:
        """The next slot of the deck that is among these; a new deck where it has none."""
        for _ in range(2):
            for slot in self._deck:
                if slot in left:
                    self._deck.remove(slot)
                    return slot
            self._deck = list(self._slots)
            self._random.shuffle(self._deck)
        raise AssertionError("every slot is in a new deck")
