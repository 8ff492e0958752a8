"""One process of the torture: serves holders, their work, permits and brokers until told to stop.

Started by `crew` as `python -m tests.temporal.torture.worker BUG`, with its orders on standard input.
"""

import asyncio
import faulthandler
import logging
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from dibs.testing.leash import hold_to
from dibs.testing.torture.orders import Orders, read_orders
from dibs.testing.torture.resources import ProtectedFiles
from tests.temporal.torture.bugs import plant
from tests.temporal.torture.holders import USE, Use
from tests.temporal.torture.plan import IDLE, QUEUE
from tests.temporal.torture.records import Claim, Diary, boot_time

CACHED = (0, 4, 100)
"""So many workflows each of three workers remembers: the fewer, the more are replayed."""

BROKER_EVENTS = 200
"""After so many a broker continues as new, so that it does so often."""


@dataclass
class Users:
    """The activities of one process."""

    folder: Path
    diary: Diary
    files: ProtectedFiles = field(init=False)

    def __post_init__(self) -> None:
        self.files = ProtectedFiles(self.folder, self.diary)

    @activity.defn(name=USE)
    async def use(self, use: Use) -> bool:
        """Work for a while and write, in time or not: the fenced file must notice."""
        slots = tuple(use.slots)
        claim = Claim(use.lease, use.key.encode(), use.token, slots, boot_time(use.until))
        if use.first:
            units = max(1, len(slots))
            invoked = boot_time(use.invoked)
            self.diary.granted(claim, invoked, units=units, capacity=use.capacity)
        else:
            self.diary.renewed(claim)
        end = self.diary.now() + use.seconds
        while (left := end - self.diary.now()) > 0:
            self.files.write(claim)
            await asyncio.sleep(min(left, random.uniform(0.01, 0.4)))
        in_time = claim.remaining > 0
        self.files.write(claim)
        self.diary.releasing(claim)  # or nobody relies on it until the next work under it
        return in_time


def main() -> None:
    """Do as ordered; the argument is a bug to be planted."""
    orders = read_orders()
    os.dup2(2, 1)  # where Temporal's own threads write
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {orders.seed} %(message)s")
    faulthandler.register(signal.SIGUSR1)  # for whoever wonders what it does
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold_to(orders.parent)
    plant(sys.argv[1])
    asyncio.run(_serve(orders))  # until it is killed, be it because the driver has ended


async def _serve(orders: Orders) -> None:
    from dibs.temporal import DibsBroker, PermitSlotWorkflow
    from dibs.temporal.worker.served import owner_closed
    from tests.temporal.torture.holders import Holder

    DibsBroker.EVENTS, DibsBroker.IDLE = BROKER_EVENTS, IDLE
    own = {"dibs", "tests"}  # bugs are planted outside of the sandbox, and imports take long
    with Diary(orders.history) as diary:
        worker = Worker(
            await _connected(orders.url),
            task_queue=f"{orders.prefix}{QUEUE}",
            workflows=[Holder, PermitSlotWorkflow, DibsBroker],
            activities=[Users(Path(orders.folder), diary).use, owner_closed],
            workflow_runner=SandboxedWorkflowRunner(
                restrictions=SandboxRestrictions.default.with_passthrough_modules(*own)
            ),
            max_cached_workflows=CACHED[orders.number % len(CACHED)],
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            graceful_shutdown_timeout=timedelta(seconds=2),
        )
        await worker.run()


async def _connected(address: str) -> Client:
    """The server may be away just now."""
    while True:
        try:
            client = await Client.connect(address)
            await client.service_client.check_health()
        except (RuntimeError, RPCError):
            await asyncio.sleep(0.2)
        else:
            return client


if __name__ == "__main__":
    main()
