"""One survey of the queues is for all who ask meanwhile, and others go on meanwhile."""

import asyncio
import random

from dibs.server.activity import SHARE, STEP, QueueSurvey
from dibs.server.key_state import KeyState, KeyStates, SeenWaiter

MANY = 5 * STEP + 7


class Counted(KeyStates):
    """One that counts how often somebody walks through it."""

    def __init__(self, keys: int) -> None:
        super().__init__(lambda _: None, lambda: 0.0, lambda: 0.0)
        self.walks = 0
        names = [b"lock:d%d/k%d" % (number % 100, number) for number in range(keys)]
        random.Random(5).shuffle(names)
        for number, key in enumerate(names):
            seen = self._begin(key)
            for place in range(3 if number == 1 else number % 2):
                seen.waiters[f"{number}.{place}"] = SeenWaiter("me", "", 1, 0.0, 30.0)

    def all(self) -> list[KeyState]:
        self.walks += 1
        return super().all()


class Clock:
    """Time that passes only while somebody walks, and when the test says so."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        self.time += 0.5
        return self.time


async def test_forty_who_ask_make_one_walk() -> None:
    sketch, clock = Counted(MANY), Clock()
    ask = QueueSurvey(sketch, clock).longest_first
    first, *others = await asyncio.gather(*(ask() for _ in range(40)))
    assert sketch.walks == 1
    assert all(other is first for other in others)
    assert await ask() is first, "it is good for a while"
    assert sketch.walks == 1
    clock.time += SHARE
    await asyncio.gather(*(ask() for _ in range(40)))
    assert sketch.walks == 2


async def test_all_of_it_in_order() -> None:
    for keys in (0, 1, STEP, MANY):
        sketch = Counted(keys)
        survey = QueueSurvey(sketch, Clock())
        lines = await survey.longest_first()
        assert lines == sorted(lines)
        assert len(lines) == keys // 2
        assert not lines or lines[0][0] == -3 or keys < 2


async def test_others_go_on_meanwhile() -> None:
    survey, turns = QueueSurvey(Counted(MANY), Clock()), 0
    asking = asyncio.create_task(survey.longest_first())
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 2 * MANY // STEP


async def test_few_are_told_as_they_are_now() -> None:
    sketch = Counted(3)
    survey = QueueSurvey(sketch, Clock())
    assert len(await survey.longest_first()) == 1
    sketch._begin(b"lock:new").waiters["4"] = SeenWaiter("me", "", 1, 0.0, 30.0)
    assert len(await survey.longest_first()) == 2


async def test_who_goes_takes_nothing_from_the_others() -> None:
    sketch = Counted(MANY)
    survey = QueueSurvey(sketch, Clock())
    first, second = (
        asyncio.create_task(survey.longest_first()),
        asyncio.create_task(survey.longest_first()),
    )
    await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == MANY // 2
    assert sketch.walks == 1
