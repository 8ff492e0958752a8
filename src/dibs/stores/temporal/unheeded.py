"""What goes on though nobody may wait for its end."""

import asyncio
from typing import Any


def unheeded[F: asyncio.Future[Any]](future: F) -> F:
    """The same; should it fail when it is no longer awaited, its loop does not complain of that."""
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future
