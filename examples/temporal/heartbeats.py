"""An activity that only one may run for each account: it tells how far it is, and fails once, half-way.

Two days of one account and a day of another are to be sealed. The locks are at the default store where
DIBS_URL names one, else in Temporal itself. `python examples/temporal/heartbeats.py` runs on the
server of TEMPORAL_ADDRESS (localhost:7233); with `--dev` on one of its own, which it starts and stops.

Prints: alice, monday: begins at page 0
Prints: alice, monday: fails at page 5, with … s left on its lock
Prints: alice, monday: goes on at page 5, under a greater token
Prints: 3 days are sealed, and no account by two at a time
"""

import asyncio
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import blake2b
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import Worker

import dibs
from dibs.temporal import current_lock, needs_lock

with workflow.unsafe.imports_passed_through():
    from devserver import run_example, say, temporal

QUEUE = "sealing"
PAGES = 12
PAGE = bytes(8_000_000)

busy: Counter[str] = Counter()
most: list[int] = []


@activity.defn
@needs_lock("account/{account}")
def seal(account: str, day: str) -> str:
    """Hash all pages of a day, each together with the hash of the one before."""
    lock, me = current_lock(), f"{account}, {day}"
    busy[account] += 1
    most.append(busy[account])
    try:
        page, digest, token = activity.info().heartbeat_details or (0, "", 0)
        if page == 0:
            say(f"{me}: begins at page 0")
        elif lock.token > token:
            say(f"{me}: goes on at page {page}, under a greater token")
        while page < PAGES:
            if (page, account, day, token) == (5, "alice", "monday", 0):
                say(f"{me}: fails at page 5, with {lock.remaining:.0f} s left on its lock")
                raise ApplicationError("the disk is full", category=ApplicationErrorCategory.BENIGN)
            digest = blake2b(digest.encode() + PAGE).hexdigest()
            page += 1
            activity.heartbeat(page, digest, lock.token)
            lock.ensure(needs=1)  # else somebody else may be at it
        return digest
    finally:
        busy[account] -= 1


@workflow.defn
class Sealing:
    """Has one day sealed, whatever comes in between."""

    @workflow.run
    async def run(self, account: str, day: str) -> str:
        return await workflow.execute_activity(
            seal,
            args=[account, day],
            schedule_to_close_timeout=timedelta(minutes=5),
            heartbeat_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200)),
        )


async def main() -> None:
    """Start all at once."""
    days = [("alice", "monday"), ("alice", "tuesday"), ("bob", "monday")]
    with ThreadPoolExecutor(4) as threads:
        async with temporal() as client:
            host = client.service_client.config.target_host
            url = os.environ.get("DIBS_URL") or f"temporal://{host}/{client.namespace}"
            async with (
                dibs.connect(url, default=True),
                Worker(
                    client,
                    task_queue=QUEUE,
                    workflows=[Sealing],
                    activities=[seal],
                    activity_executor=threads,
                ),
            ):
                seals = await asyncio.gather(
                    *(
                        client.execute_workflow(
                            Sealing.run, args=[*each], id=f"sealing-{uuid4()}", task_queue=QUEUE
                        )
                        for each in days
                    )
                )
    how = "no account by two at a time" if max(most) == 1 else "two sealed one account at a time"
    say(f"{len(seals)} days are sealed, and {how}")


if __name__ == "__main__":
    run_example(main(), __doc__)
