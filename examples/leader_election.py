"""Two candidates: one leads, steps down, and the other takes over at once, with a greater token.

Prints: first leads
Prints: second leads, with a greater token
"""

import asyncio

from dibs import Client, connect


class Candidate:
    """One of several processes, as it were."""

    def __init__(self, client: Client, name: str) -> None:
        self.leader = client.leader_election("planner", label=name)
        self.name = name
        self.leads: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.enough = asyncio.Event()

    async def run(self) -> None:
        """Wait to be elected, then lead; whatever a leader writes to is given the term's token."""
        async with self.leader as term:
            self.leads.set_result(term.token)
            await self.enough.wait()


async def main() -> None:
    async with connect() as client, asyncio.TaskGroup() as group:
        first, second = Candidate(client, "first"), Candidate(client, "second")
        group.create_task(first.run())
        token = await first.leads
        print(f"{first.name} leads")
        group.create_task(second.run())
        first.enough.set()  # its block ends, so it steps down
        assert await second.leads > token
        print(f"{second.name} leads, with a greater token")
        second.enough.set()


if __name__ == "__main__":
    asyncio.run(main())
