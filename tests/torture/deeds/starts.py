"""Task locks: short tasks, tasks that fail, and such as take longer than they may."""

from typing import Any

from tests.torture.hand import Hand
from tests.torture.kinds import SimTaskLock

TASKS = {"often": (0.3, 1.0), "seldom": (1.0, 12.0), "soon": (0.1, 0.6)}
"""Names, `min_hold` and `max_hold`."""


class Oops(Exception):
    """A task has failed."""


async def tasklock(hand: Hand) -> None:
    """One try; whatever becomes of the task, nobody starts it too soon after that."""
    name, cancel = hand.draw.choice(tuple(TASKS)), hand.draw.random() < 0.5
    primitive = hand.life.shared(SimTaskLock, name, *TASKS[name], cancel=cancel)

    async def task(lease: Any) -> None:
        shortest, longest = TASKS[name]
        length = hand.draw.choices((0.0, shortest / 2, shortest * 2, longest * 1.2), (6, 6, 2, 1))[
            0
        ]
        await hand.sleep(0.0 if hand.world.closing else length)
        if await hand.check(lease):
            hand.write(lease)
        if hand.draw.random() < 0.2:
            raise Oops

    try:
        await hand.hold(await hand.acquire(primitive, wait=0.0), task)
    except Oops:
        pass
