"""A small world of stores, servers, clients and a mover, and every order in which their steps can go.

The stores apply the real ledger (`books`), the servers run the real plans (`dibs.server.placing.plans`)
and tell by the real rule of freshness (`steps`), the mover takes the real steps (`mover_steps`). What is
abstracted is time: a hold that nobody believes in may lapse at any moment, one that somebody believes in does
not (that is what ttl and margin are for), and when the mover has waited, every server that has not read since
is stale (that is what `settled_after` is for). Commands may be late for ever: whoever gives one up leaves its
copy on its way. Who believes in a lease asks every server for it at every moment, also those that have read
nothing for long (`denials`): none may say that there is nothing. And whoever was not told of a grant may ask
for a renewal nevertheless (`renewals`), also a server that is cut off from the records: of one server always,
as that alone knows what it has withheld, or of any once he has a place in line.

There one name has one home. That this is so where directories lie in each other, whatever movers and
administrators read and write at a time, is `errands`' to see.

States that differ only in which server is which, or in the numbers of arrivals and not their order, are one.
`python -m tests.server.placing.model [MINUTES]` goes through larger worlds than the tests do, as far as it
comes in that time, then along ways by chance, and says what it saw.
"""

import asyncio
import logging
import sys
import time
from dataclasses import replace

from tests.server.placing.errands import errands
from tests.server.placing.search import sweep, walk
from tests.server.placing.states import World

MOST = 1_500_000
"""States of one world: so many fit into memory."""

_WORLD = World()
WORLDS = {
    "two servers, one lapse": replace(_WORLD, lapses=1, copies=0),
    "two servers, late copies": replace(_WORLD, lapses=0),
    "a lone store gets a second": replace(_WORLD, lone=True, lapses=0, copies=0),
    "there and back": replace(_WORLD, moves=2, copies=0, tries=(1, 1), lapses=1),
    "semaphores": replace(_WORLD, kind=b"semaphore", capacities=(1, 2), lapses=0, copies=0),
    "renewals of what was withheld": replace(
        _WORLD, renews=(2, 0), falls_silent=True, lone=True, lapses=1, tries=(2, 1)
    ),
    "renewals of places in line": replace(
        _WORLD,
        renews=(2, 0),
        roams=True,
        falls_silent=True,
        sessions=(1, 2),
        copies=0,
        lapses=1,
        tries=(1, 1),
        asks=False,
    ),
    "all at a time": replace(_WORLD, lone=True, moves=2),
}


def main(minutes: float) -> None:
    """Half of the time for all worlds in their breadth, half for ways through them, and for errands.

    Raises `Flaw`, or `Astray`.
    """
    share = 30 * minutes / len(WORLDS)
    for name, world in WORLDS.items():
        found = sweep(world, MOST, share)
        extent = "all" if found.is_all else "the first"
        print(f"{name}: {extent} {found.states:,} states, to depth {found.depth}", flush=True)
    for name, world in WORLDS.items():
        end, seed, steps, deepest = time.monotonic() + share, 0, 0, 0
        while time.monotonic() < end:
            path = walk(world, seed)
            seed, steps, deepest = seed + 1, steps + len(path), max(deepest, len(path))
        print(f"{name}: {seed:,} ways, {steps:,} steps, the longest of {deepest}", flush=True)
    logging.disable()  # movers that fail complain
    end, seed = time.monotonic() + share, 0
    while time.monotonic() < end:
        asyncio.run(errands(seed))
        seed += 1
    print(f"movers and an administrator over directories in each other: {seed:,} ways", flush=True)


if __name__ == "__main__":
    main(float((sys.argv[1:] or ["10"])[0]))
