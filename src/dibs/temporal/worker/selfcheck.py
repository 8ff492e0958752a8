"""Does anybody serve the permit queue? Asked where a wait for nobody would look like a long line."""

import logging

from temporalio.client import Client

from dibs.backends.temporal.client.pollers import last_heard
from dibs.backends.temporal.protocol.unserved import serve, unserved
from dibs.errors import DibsError

logger = logging.getLogger("dibs.temporal")


async def warn_if_unserved(client: Client, queue: str) -> None:
    """Log a warning where nobody does. Whatever goes wrong with that is nobody's trouble."""
    try:
        heard = await last_heard(client, queue)
    except DibsError as error:
        logger.debug("whether anybody serves the task queue %r is not known: %s", queue, error)
    else:
        if heard is None:
            where = f" in namespace {client.namespace!r}, so no workflow here will get a permit"
            logger.warning(
                "%s: %s; TEMPORAL_TASK_QUEUE names another queue",
                unserved(queue, where),
                serve(queue),
            )
