"""Calls of workflows that come faster than one workflow task may apply them: the rest waits for the next.

A worker takes a workflow that computes for two seconds for one that hangs, and would never get beyond that
task. So what has gathered while no worker was there is applied in portions, in the order of its arrival.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from dibs.stores.temporal.protocol.wire import BrokerCall, unpack_call

type Letter = RawValue | dict[str, Any]
"""A call as it came, or as the run before has opened it. Opened only at its turn, as that takes longest."""


def call_in(letter: Letter) -> BrokerCall:
    """What a workflow asks. Raises `ValueError` for what is no call of ours."""
    return unpack_call(opened(letter))


def opened(letter: Letter) -> dict[str, Any]:
    """As plain JSON; empty if it can't be read, as by no release of ours."""
    if not isinstance(letter, RawValue):
        return letter
    try:
        found: Any = workflow.payload_converter().from_payload(letter.payload)
    except Exception as error:  # noqa: BLE001 - whatever a converter raises, a broker goes on
        workflow.logger.warning("A signal that can't be read: %s", error)
        found = {}
    return found if isinstance(found, dict) else {}


def size_of(letter: Letter) -> int:
    """In bytes."""
    return len(letter.payload.data if isinstance(letter, RawValue) else json.dumps(letter))


_A_MOMENT = 0.001
"""A timer ends a workflow task, and its end begins the next one."""


class _Turn:
    """The place of an update among the letters: one whose client waits for the answer."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.is_over = asyncio.Event()


class Backlog:
    """What waits to be applied. `apply` does it with one letter, and `changed` is told of each portion."""

    PORTION = 200
    """So many letters one workflow task applies: a tenth of a second's work."""

    def __init__(
        self,
        apply: Callable[[Letter], None],
        changed: Callable[[], None],
        letters: Iterable[dict[str, Any]] | None,
    ) -> None:
        self._apply = apply
        self._changed = changed
        self._waiting: deque[Letter | _Turn] = deque(letters or ())
        self._working: asyncio.Task[None] | None = None
        self._applying = False
        self._paused = False
        self._turns = 0
        self._task = 0
        """The workflow task that runs, by the length of the history before it …"""
        self._applied = 0
        """ … and how many letters it has applied."""
        self.size = sum(map(size_of, letters or ()))
        """Of the letters, in bytes."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def at_rest(self) -> bool:
        """No letter is half applied, and no update waits: the next run can have the rest."""
        return not self._applying and not self._turns

    def dump(self) -> list[dict[str, Any]]:
        """For the next run."""
        return [opened(each) for each in self._waiting if not isinstance(each, _Turn)]

    def keeps(self, letter: Letter) -> bool:
        """Whether it has to wait, as others do or as this task has applied enough."""
        if not self._waiting and not self._is_full():
            self._applied += 1
            return False
        self._waiting.append(letter)
        self.size += size_of(letter)
        self._changed()
        return True

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """A block that is entered once all that came before has been applied."""
        if not self._waiting:
            yield
            return
        turn = _Turn()
        self._waiting.append(turn)
        self._turns += 1
        self._changed()
        await turn.has_come.wait()
        try:
            yield
        finally:
            self._turns -= 1
            turn.is_over.set()

    def work(self, *, pause: bool) -> None:
        """Have the next portion applied; not with `pause`, unless an update waits behind it."""
        self._paused = pause and not self._turns
        if self._working is not None and self._working.done():
            ended, self._working = self._working, None
            ended.result()  # an error of ours is one of the broker's, and not to be lost here
        if self._waiting and self._working is None and not self._paused:
            self._working = asyncio.create_task(self._work_off())

    async def _work_off(self) -> None:
        await workflow.sleep(_A_MOMENT, summary="before the next portion of a burst of calls")
        if not self._paused:
            self._applying = True
            try:
                await self._portion()
            finally:
                self._applying = False
                self._changed()

    async def _portion(self) -> None:
        while self._waiting and not self._is_full():
            self._applied += 1
            first = self._waiting.popleft()
            if isinstance(first, _Turn):
                first.has_come.set()
                await first.is_over.wait()
            else:
                self.size -= size_of(first)
                self._apply(first)

    def _is_full(self) -> bool:
        """Whether this workflow task has applied as much as it may."""
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._applied = task, 0
        return self._applied >= self.PORTION
