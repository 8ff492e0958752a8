"""What this run of a workflow holds, and the ear by which its permits speak to it."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from temporalio import workflow

from dibs.stores.temporal.protocol import permits as said
from dibs.stores.temporal.protocol.permits import PermitNews

type Listener = Callable[[PermitNews], None]

MOST_UNHEARD = 1_000
"""Of so many permits news is kept at most, where some start or other is always under way."""


class Here:
    """One for each run: a run has an event loop of its own, and what it holds goes with that."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[str, asyncio.Task[Any] | None]] = {}
        self._listeners: dict[str, Listener] = {}
        self._starting = 0
        self._unheard: dict[str, list[PermitNews]] = {}
        """What a permit said before its start was known here: both may come at one time, this first."""
        self.released = 0
        """How often a permit was given up, so that those who wait here notice."""
        workflow.set_signal_handler(said.NEWS, self._hear)

    def take(self, resource: str, slot: str) -> None:
        """This task tries for a slot, or has it: no other task of this workflow need ask the server."""
        self._taken.setdefault(resource, {})[slot] = asyncio.current_task()

    def forget(self, resource: str, slot: str) -> None:
        """Nobody here has it; it may be another's."""
        slots = self._taken.get(resource, {})
        slots.pop(slot, None)
        if not slots:
            self._taken.pop(resource, None)

    def give_back(self, resource: str, slot: str) -> None:
        """It was held here, and may be free now."""
        self.released += 1
        self.forget(resource, slot)

    def taken(self, resource: str) -> set[str]:
        """The slots that tasks of this workflow have or try for."""
        return set(self._taken.get(resource, ()))

    def mine(self, resource: str) -> set[str]:
        """Those that this very task has."""
        me = asyncio.current_task()
        return {slot for slot, task in self._taken.get(resource, {}).items() if task is me}

    @contextmanager
    def starting(self) -> Generator[None]:
        """A block in which a permit is started, and its run ID learnt: until then it may speak unheard.

        What else is heard meanwhile is late news of a permit that is over, and thrown away afterwards.
        """
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            if not self._starting:
                self._unheard.clear()

    def listen(self, permit: str, listener: Listener) -> None:
        """What the permit of that run ID says goes there, also what it has said already."""
        self._listeners[permit] = listener
        for news in self._unheard.pop(permit, ()):
            listener(news)

    def unlisten(self, permit: str) -> None:
        """No more."""
        self._listeners.pop(permit, None)

    def _hear(self, news: PermitNews) -> None:
        listener = self._listeners.get(news.permit)
        if listener is not None:
            listener(news)
        elif self._starting:
            self._unheard.setdefault(news.permit, []).append(news)
            while len(self._unheard) > MOST_UNHEARD:
                del self._unheard[next(iter(self._unheard))]


_runs: WeakKeyDictionary[asyncio.AbstractEventLoop, Here] = WeakKeyDictionary()


def here() -> Here:
    """That of the workflow whose code runs now."""
    loop = asyncio.get_running_loop()
    found = _runs.get(loop)
    if found is None:
        found = _runs[loop] = Here()
    return found
