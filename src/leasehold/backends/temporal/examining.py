"""What to know about a Temporal server before one relies on it: asked of the server itself."""

import time
from datetime import timedelta

from leasehold.backends.temporal.connecting import Connection
from leasehold.backends.temporal.serving import ALIVE, polled
from leasehold.backends.temporal.trouble import WORKER
from leasehold.model import Finding

LOOK = timedelta(seconds=5)


async def examine(connection: Connection) -> list[Finding]:
    """Version and storage, and whether anybody runs brokers."""
    from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
    from temporalio.service import RPCError

    client = await connection.client()
    try:
        about = await client.workflow_service.get_cluster_info(
            GetClusterInfoRequest(), timeout=LOOK
        )
    except RPCError as error:
        raise connection.explain(error) from error
    polls = await polled(client, connection.settings.task_queue)
    return [
        Finding("server", "ok", f"Temporal {about.server_version}, {connection.target}"),
        *_storage(about.persistence_store),
        _worker(connection, polls),
    ]


def _storage(store: str) -> list[Finding]:
    """What is to be said beside the store's promises: they are of a server with a database."""
    if "sqlite" not in store.lower():
        return []
    told = "it is a development server: what it knows may be lost when it ends"
    advice = "start it with --db-filename, and use a real one in production"
    return [Finding("promises", "warning", told, advice)]


def _worker(connection: Connection, polls: list[float]) -> Finding:
    queue = connection.settings.task_queue
    alive = [ago for each in polls if (ago := time.time() - each) < ALIVE]
    if not alive:
        told = f"nobody serves the task queue {queue!r}, so nothing can be granted"
        return Finding("worker", "problem", told, WORKER)
    workers = "a worker serves" if len(alive) == 1 else f"{len(alive)} workers serve"
    told = f"{workers} the task queue {queue!r}, heard of {max(min(alive), 0):.0f} s ago"
    return Finding("worker", "ok", told)
