"""A coroutine that runs in a thread of its own, over ports that block."""

import threading
from collections.abc import Coroutine
from typing import Any

from dibs.runtime.step import step


class ThreadJob:
    """A daemon thread: a process that ends doesn't wait for it."""

    __slots__ = ("_thread",)

    def __init__(self, body: Coroutine[Any, Any, None], name: str) -> None:
        self._thread = threading.Thread(target=step, args=(body,), name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            body.close()
            raise

    async def join(self, timeout: float | None) -> bool:
        """Wait until it has ended; tell whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """A thread can't be interrupted: it ends as soon as the store has answered."""
