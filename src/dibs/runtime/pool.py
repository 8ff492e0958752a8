"""The connections of a process's threads, and the queue of those that wait for one."""

import threading
from collections import deque
from contextlib import suppress
from time import monotonic

from dibs.errors import BackendUnavailable
from dibs.process import Gate
from dibs.stores.port import BlockingConnection

MAX_IDLE = 16
"""Connections that are kept for the next thread that calls, where a store sets no limit."""

LOOK_EVERY = 1.0
"""Seconds between two looks of a waiting thread for connections that were lost."""


class Slot:
    """Room for a connection, and the thread that uses it."""

    __slots__ = ("connection", "thread")

    def __init__(self) -> None:
        self.connection: BlockingConnection | None = None
        """Made by the first who takes it."""
        self.thread: threading.Thread | None = None

    def close(self) -> None:
        """Disconnect; the next who takes it makes another connection."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class _Waiter:
    __slots__ = ("gate", "slot")

    def __init__(self) -> None:
        self.gate = Gate()
        self.slot: Slot | None = None


class Pool:
    """At most `most` connections for all threads: each call takes one, and gives it to the next in the queue.

    Threads wait here, first come first served, and not inside the store, where each try of theirs hinders
    the others. Each step is one operation on a deque or a dict: threads and interrupts may come between any
    two. An interrupt can lose a connection between two steps; a thread that waits finds and replaces it.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._reset()

    def _reset(self) -> None:
        slots = [Slot() for _ in range(self._most or 0)]
        self._slots = dict.fromkeys(slots)
        """All there are, if their number is limited."""
        self._idle = deque(slots)
        self._queue: deque[_Waiter] = deque()

    def take(self, timeout: float) -> Slot:
        """Return a connection for this thread alone. Raises `BackendUnavailable` if none is free in time."""
        try:
            slot = self._idle.pop()
        except IndexError:
            slot = Slot() if self._most is None else self._wait(timeout)
        slot.thread = threading.current_thread()
        return slot

    def give(self, slot: Slot) -> None:
        """Free it for the next thread."""
        is_wanted = slot in self._slots if self._most else len(self._idle) < MAX_IDLE
        if not is_wanted:
            return slot.close()
        slot.thread = None
        if not self._pass_on(slot):
            self._idle.append(slot)
            if self._queue:  # somebody came between the two
                self._serve()
        return None

    def discard(self, slot: Slot) -> None:
        """Drop a connection that is of no use any more; the next thread makes another."""
        slot.close()
        if self._slots.pop(slot, slot) is None:
            self._add()

    def close(self) -> None:
        """Disconnect what is idle."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):
                slot = self._idle.pop()
                slot.close()
                self._idle.appendleft(slot)

    def after_fork(self) -> None:
        """In the child: drop the parent's connections, and forget its threads."""
        for slot in (*self._slots, *self._idle):
            if slot.connection is not None:
                slot.connection.after_fork()
        self._reset()

    def _add(self) -> None:
        slot = Slot()
        self._slots[slot] = None
        self.give(slot)

    # -- the queue ----------------------------------------------------------------------------------

    def _wait(self, timeout: float) -> Slot:
        waiter, until = _Waiter(), monotonic() + timeout
        lost: set[Slot] = set()
        try:
            self._queue.append(waiter)
            if self._idle:  # given back before anybody could see us
                self._serve()
            while not waiter.gate.wait(min(LOOK_EVERY, max(until - monotonic(), 0.0))):
                if monotonic() >= until:
                    self._stop_waiting(waiter)
                    break
                lost = self._replace_lost(lost)
        except BaseException:
            self._stop_waiting(waiter)
            if waiter.slot is not None:
                self.give(waiter.slot)
            raise
        if waiter.slot is None:
            raise BackendUnavailable(
                f"the store did not answer in time: all {self._most} connections of this process "
                f"were in use for {timeout:.3g} s"
            )
        return waiter.slot

    def _stop_waiting(self, waiter: _Waiter) -> None:
        try:
            self._queue.remove(waiter)
        except ValueError:
            waiter.gate.wait(LOOK_EVERY)  # it was served, or is just being

    def _replace_lost(self, suspects: set[Slot]) -> set[Slot]:
        """Replace connections that an interrupt has lost; return those that may be.

        Lost: its thread is dead, or is this one, which uses none; or nobody has had it for two looks.
        """
        me, idle = threading.current_thread(), set(self._idle)
        may_be = set[Slot]()
        for slot in self._slots.keys() - idle:
            thread = slot.thread
            is_lost = slot in suspects if thread is None else thread is me or not thread.is_alive()
            if is_lost and self._slots.pop(slot, slot) is None:
                self._add()
            elif thread is None:
                may_be.add(slot)
        return may_be

    def _serve(self) -> None:
        """Serve the queue from what is idle."""
        try:
            slot = self._idle.pop()
        except IndexError:
            return
        if not self._pass_on(slot):
            self._idle.append(slot)

    def _pass_on(self, slot: Slot) -> bool:
        try:
            waiter = self._queue.popleft()
        except IndexError:
            return False
        waiter.slot = slot
        waiter.gate.open()
        return True
