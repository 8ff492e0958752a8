"""Two schedulers, as of two processes, on one store: each tick is run by one, and an error harms nobody.

`python examples/tasks.py`

Prints: polled by …, with token
Prints: polled by …, with token
Prints: of 2 ticks each was won by one, and left to it by the other
Prints: broken failed: ValueError: this one never works
Prints: healthy: True
"""

import asyncio
import logging

import dibs
from dibs import current_lease
from dibs.tasks import TaskRouter, Tasks

logging.getLogger("dibs.tasks").addHandler(logging.NullHandler())  # it tells of all errors


def timetable(who: str) -> TaskRouter:
    """What every process declares when it starts."""
    router = TaskRouter()

    @router.every("1s", name="poll", max_hold="1m")
    async def poll() -> None:
        print(f"polled by {who}, with token {current_lease().token}")

    @router.every("1s", name="broken")
    def broken() -> None:  # a plain function, in a thread
        raise ValueError("this one never works")

    @router.cron("0 3 * * *", name="report", timezone="Europe/Berlin", missed="latest", grace="10m")
    async def report() -> None:
        print(f"the nightly report, by {who}")

    return router


async def main() -> None:
    async with dibs.connect() as client:
        here, there = Tasks(client=client), Tasks(client=client)
        here.include_router(timetable("here"))
        there.include_router(timetable("there"))
        async with here, there:
            while True:
                await asyncio.sleep(0.05)
                one, other = here.status(), there.status()
                won = one["poll"].won + other["poll"].won
                elsewhere = one["poll"].elsewhere + other["poll"].elsewhere
                failed = one["broken"].last_error or other["broken"].last_error
                if won == elsewhere == 2 and failed:
                    break
            print(f"of {won} ticks each was won by one, and left to it by the other")
            print(f"broken failed: {failed}")
            print("healthy:", here.healthy() and there.healthy())


if __name__ == "__main__":
    asyncio.run(main())
