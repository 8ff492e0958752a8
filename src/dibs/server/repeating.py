"""Work that a server does again and again, for as long as it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dibs.errors import DibsError

log = logging.getLogger("dibs.server")


class Complaints:
    """What goes wrong is told once, until something else does or all is well."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def tell(self, about: str, what: str) -> None:
        """Something is wrong, still or anew."""
        if self._told.get(about) != what:
            self._told[about] = what
            log.warning("%s: %s", about, what)

    def settle(self, about: str) -> None:
        """All is well with that."""
        self._told.pop(about, None)


async def repeat(
    work: Callable[[], Awaitable[None]], every: float, trouble: str, first: float | None = None
) -> None:
    """Do it every so many seconds, the first time after `first`. Logs what fails once, after `trouble`."""
    complaints = Complaints()
    pause = every if first is None else first
    while True:
        await asyncio.sleep(pause)
        pause = every
        try:
            await work()
            complaints.settle(trouble)
        except (DibsError, TimeoutError) as error:
            complaints.tell(trouble, str(error) or "it takes too long")
        except Exception:
            log.exception(trouble)
