"""Ticks at which nobody was there: left out, or made up for, by policy."""

from typing import Any

import pytest

from dibs.tasks import Tasks
from tests.tasks.places import Cluster, turn
from tests.tasks.test_ticks import Job, counts


class Ticks(Job):
    """Writes down which ticks were run, in seconds, instead of when."""

    def on(self, tasks: Tasks, where: str = "", **options: Any) -> Tasks:
        async def job() -> None:
            tick = tasks.status()["job"].last_tick
            assert tick is not None
            self.ran.append((where, tick.timestamp() - 1_800_000_000))
            await self.may_end.wait()

        tasks.every("60s", name="job", **options)(job)
        return tasks


@pytest.mark.parametrize(
    ("missed", "grace", "ran"),
    [
        ("skip", "1h", [360]),
        ("latest", "1h", [300, 360]),
        ("latest", "10s", [360]),  # the newest is too old already
        ("all", "150s", [180, 240, 300, 360]),
    ],
)
async def test_on_start(place: Cluster, missed: Any, grace: str, ran: list[float]) -> None:
    job = Ticks(place)
    place.clock.advance(315)
    tasks = job.on(place.tasks(), missed=missed, grace=grace)
    async with tasks:
        await place.advance(60)
    assert job.seconds == ran


@pytest.mark.parametrize(
    ("missed", "ran", "missing"),
    [("skip", [360], 4), ("latest", [300, 360], 3), ("all", [180, 240, 300, 360], 1)],
)
async def test_on_waking_from_a_pause(
    place: Cluster, missed: Any, ran: list[float], missing: int
) -> None:
    job = Ticks(place)
    tasks = job.on(place.tasks(), missed=missed, grace="150s")
    async with tasks:
        await place.advance(60)
        job.ran.clear()
        place.clock.advance(255)  # and nothing runs meanwhile
        await turn()
        await place.advance(60)
        assert job.seconds == ran
        assert counts(tasks)[3] == missing


async def test_a_loop_that_is_a_little_late_misses_nothing(place: Cluster) -> None:
    job = Ticks(place)
    async with job.on(place.tasks()):
        await place.advance(58)
        place.clock.advance(11)
        await turn()
    assert job.seconds == [60]


@pytest.mark.parametrize("missed", ["latest", "all"])
async def test_over_a_restart_what_was_run_is_not_run_again(place: Cluster, missed: Any) -> None:
    job = Ticks(place)
    async with job.on(place.tasks(), "first", missed=missed, grace="10m"):
        await place.advance(190)
    place.clock.advance(130)
    async with job.on(place.tasks(), "second", missed=missed, grace="10m"):
        await place.advance(60)
    made_up = [("second", 240.0), ("second", 300.0)] if missed == "all" else [("second", 300.0)]
    first = (
        [("first", 0.0)] if missed == "latest" else [("first", -60.0 * k) for k in range(9, -1, -1)]
    )
    assert job.ran == [
        *first,
        ("first", 60),
        ("first", 120),
        ("first", 180),
        *made_up,
        ("second", 360),
    ]


async def test_all_are_run_in_order_one_after_the_other(place: Cluster) -> None:
    job = Ticks(place)
    place.clock.advance(190)
    job.may_end.clear()
    tasks = job.on(place.tasks(), missed="all", grace="131s")
    async with tasks:
        await turn()
        assert job.seconds == [60]
        job.may_end.set()
        await turn()
        assert job.seconds == [60, 120, 180]


async def test_two_that_start_together_share_what_was_missed(place: Cluster) -> None:
    job = Ticks(place)
    place.clock.advance(600)
    two = [job.on(place.tasks(), where, missed="all", grace="5m") for where in "ab"]
    async with two[0], two[1]:
        await place.advance(5)
    assert sorted(job.seconds) == [360, 420, 480, 540, 600]


async def test_on_a_store_that_forgets_a_restart_runs_the_latest_again(place: Cluster) -> None:
    """What is said of stores that are not durable, and why `skip` is the default."""
    job = Ticks(place)
    async with job.on(place.tasks(), missed="latest"):
        await place.advance(61)
    other = Cluster()
    other.clock.advance(61)
    async with job.on(other.tasks(), missed="latest"):
        await turn()
    await other.clients[0].close()
    assert job.seconds == [0, 60, 60]
