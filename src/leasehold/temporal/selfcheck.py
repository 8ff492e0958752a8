"""Does anybody serve the permit queue? Asked where a wait for nobody would look like a long line."""

import logging

from temporalio.client import Client

from leasehold.backends.temporal.serving import last_heard
from leasehold.errors import LeaseholdError

logger = logging.getLogger("leasehold.temporal")


async def warn_if_unserved(client: Client, queue: str) -> None:
    """Log a warning where nobody does. Whatever goes wrong with that is nobody's trouble."""
    try:
        heard = await last_heard(client, queue)
    except LeaseholdError as error:
        logger.debug("whether anybody serves the task queue %r is not known: %s", queue, error)
    else:
        if heard is None:
            logger.warning("%s", unserved(queue, client.namespace))


def unserved(queue: str, namespace: str) -> str:
    """What to say where nobody does."""
    return (
        f"nobody serves the task queue {queue!r} in namespace {namespace!r}, so no workflow here will get "
        "a permit: run `leasehold temporal worker`, or LeaseholdPlugin(serve=True) in one of your "
        "workers; TEMPORAL_TASK_QUEUE names another queue"
    )
