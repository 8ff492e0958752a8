"""One process of the demo, with some workers; it ends with the demo, however that one ends.

Started by `crew` as `python -m dibs.cli.demo.worker`, with its orders on standard input, where `ps`
does not see the key.
"""

import asyncio
import json
import logging
import sys

from dibs import connect
from dibs.cli.demo.roles import work
from dibs.testing.leash import hold_to


async def _work(url: str, workers: list[str]) -> None:
    async with connect(url) as client, asyncio.TaskGroup() as group:
        for each in workers:
            group.create_task(work(client, each))


def main() -> None:
    """Read the orders, and work until killed."""
    orders = json.loads(sys.stdin.buffer.readline())
    hold_to(orders["parent"])
    logging.getLogger("dibs").addHandler(logging.NullHandler())  # the demo tells of losses
    asyncio.run(_work(orders["url"], orders["workers"]))


if __name__ == "__main__":
    main()
