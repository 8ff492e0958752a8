"""Brokers and permits on task queues that nobody serves: what they keep is stuck until somebody does."""

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from dibs.backends.temporal.client.pollers import attended, last_heard
from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.unserved import serve, terminate, unserved
from dibs.errors import DibsError
from dibs.model import Finding

if TYPE_CHECKING:
    from temporalio.client import Client

LOOK = timedelta(seconds=5)
MOST = 10_000
"""So many workflows are looked at, and …"""
QUEUES = 10
""" … so many queues."""


async def strays(client: "Client", known: str) -> list[Finding]:
    """A problem for each queue but the known one; nothing where the server's index can't be asked."""
    from temporalio.service import RPCError

    by_queue: Counter[str] = Counter()
    some: dict[str, str] = {}
    query = f"WorkflowType IN ('{ids.BROKER}', '{ids.PERMIT}') AND ExecutionStatus = 'Running'"
    try:
        async for run in client.list_workflows(query, page_size=1000, limit=MOST, rpc_timeout=LOOK):
            by_queue[run.task_queue] += 1
            some.setdefault(run.task_queue, run.id)
    except RPCError:
        return []
    del by_queue[known]
    return [
        _stray(queue, many, some[queue])
        for queue, many in by_queue.most_common(QUEUES)
        if not await _is_served(client, queue)
    ]


async def _is_served(client: "Client", queue: str) -> bool:
    try:
        return attended(await last_heard(client, queue)) != "no"
    except DibsError:
        return True  # not known


def _stray(queue: str, many: int, one: str) -> Finding:
    what = f"{one} is" if many == 1 else f"{many} brokers and permits, such as {one}, are"
    return Finding(
        "queues",
        "problem",
        f"{unserved(queue, f', and {what} on it')}: who wants what they keep waits in vain",
        f"{serve(queue)}; or, where nothing is held by them, end them with {terminate('ID')}",
    )
