"""The slots of one workflow run in slot mode, and the news of its permits."""

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from temporalio import workflow

from dibs.temporal.slots.workflow import NEWS, PermitNews

type Listener = Callable[[PermitNews], None]

MAX_EARLY_NEWS = 1_000
"""Unknown permits whose news a run keeps at most. Late news of permits that are over count too."""


class RunState:
    """Slots that one workflow run holds or tries to take, and the listeners for news of its permits."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[str, asyncio.Task[Any] | None]] = {}
        self._listeners: dict[str, Listener] = {}
        self._early_news: dict[str, list[PermitNews]] = {}
        """News of permits whose run ID is not known here yet: one task can bring both, the news first."""
        self.released: int = 0
        """Number of permits given up. Other tasks of this run wait for it to change."""
        workflow.set_signal_handler(NEWS, self._receive)

    def take(self, resource: str, slot: str) -> None:
        """Note that this task holds the slot or tries to. Other tasks of the run need not ask the server."""
        self._taken.setdefault(resource, {})[slot] = asyncio.current_task()

    def forget(self, resource: str, slot: str) -> None:
        """Note that no task of this run has the slot. Another workflow may."""
        slots = self._taken.get(resource, {})
        slots.pop(slot, None)
        if not slots:
            self._taken.pop(resource, None)

    def give_back(self, resource: str, slot: str) -> None:
        """Note that the slot was held here, and may be free now."""
        self.released += 1
        self.forget(resource, slot)

    def taken(self, resource: str) -> set[str]:
        """Slots that tasks of this run hold or try to take."""
        return set(self._taken.get(resource, ()))

    def mine(self, resource: str) -> set[str]:
        """Slots that the current task holds or tries to take."""
        me = asyncio.current_task()
        return {slot for slot, task in self._taken.get(resource, {}).items() if task is me}

    def listen(self, permit: str, listener: Listener) -> None:
        """Pass news of the permit with this run ID to the listener, early news at once."""
        self._listeners[permit] = listener
        for news in self._early_news.pop(permit, ()):
            listener(news)

    def unlisten(self, permit: str) -> None:
        """Drop its news from now on."""
        self._listeners.pop(permit, None)

    def _receive(self, news: PermitNews) -> None:
        listener = self._listeners.get(news.permit)
        if listener is not None:
            listener(news)
        else:
            self._early_news.setdefault(news.permit, []).append(news)
            while len(self._early_news) > MAX_EARLY_NEWS:
                del self._early_news[next(iter(self._early_news))]


_runs: WeakKeyDictionary[asyncio.AbstractEventLoop, RunState] = WeakKeyDictionary()


def run_state() -> RunState:
    """The state of the workflow run that calls it. Each run has an event loop of its own."""
    loop = asyncio.get_running_loop()
    found = _runs.get(loop)
    if found is None:
        found = _runs[loop] = RunState()
    return found
