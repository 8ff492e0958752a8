"""Connections for threads: each call takes one, and gives it to the next thread in line.

A store may say how many connections at a time are best for it. More threads than that wait in line
here, first come first served, and not inside the store, where each try of theirs hinders the others.
"""

from collections import deque
from collections.abc import Callable

from dibs.backends.port import Backend
from dibs.gate import Gate
from dibs.runtime.step import step

MAX_IDLE = 16
"""So many connections are kept for the next thread that calls."""

LONGEST = 1.0
"""Nobody stands in line longer, in seconds: a connection may hang, or was lost with its thread."""


class _Ticket:
    __slots__ = ("backend", "gate")

    def __init__(self) -> None:
        self.gate = Gate()
        self.backend: Backend | None = None


class Pool:
    """Each step is one operation on a deque: threads and interrupts may come between any two."""

    def __init__(self, make: Callable[[], Backend], most: int | None) -> None:
        self._make = make
        self._most = most
        self._made = 0
        self._idle: deque[Backend] = deque()
        self._line: deque[_Ticket] = deque()

    def take(self, patience: float | None = None) -> Backend:
        """A connection for this thread alone, within `patience` seconds where the store can do that."""
        try:
            return self._idle.pop()
        except IndexError:
            pass  # and of no interest to who can't connect
        if self._most is not None and self._made >= self._most:
            return self._stand_in_line(patience)
        return self._new(patience)

    def give(self, backend: Backend) -> None:
        """It is free for the next thread."""
        if self._next_in_line(backend):
            return
        if len(self._idle) < (self._most or MAX_IDLE):
            self._idle.append(backend)
            if self._line:  # somebody came between the two
                self._hurry()
        else:
            self.discard(backend)

    def discard(self, backend: Backend) -> None:
        """Nobody should use it any more; who is next makes another."""
        self._made = max(self._made - 1, 0)
        self._next_in_line(None)
        step(backend.close())

    def close(self) -> None:
        """Disconnect what is idle."""
        while self._idle:
            self.discard(self._idle.pop())

    def after_fork(self) -> None:
        """Nothing of the parent's is of use, and none of its threads is here."""
        for backend in self._idle:
            backend.after_fork()
        self._idle = deque()
        self._line = deque()
        self._made = 0

    def _new(self, patience: float | None) -> Backend:
        self._made += 1
        try:
            backend = self._make()
            within = None if patience is None else getattr(backend, "open_within", None)
            # the keeper listens for all threads
            step(backend.open(listen=False) if within is None else within(patience))
        except BaseException:
            self._made = max(self._made - 1, 0)
            self._next_in_line(None)
            raise
        return backend

    # -- the line -----------------------------------------------------------------------------------

    def _stand_in_line(self, patience: float | None) -> Backend:
        ticket = _Ticket()
        try:
            self._line.append(ticket)
            if self._idle:  # given back before anybody could see us
                self._hurry()
            if not ticket.gate.wait(LONGEST):
                self._step_out(ticket)
                self._made = 0  # so that a lost one costs this once
            return ticket.backend or self._new(patience)
        except BaseException:
            self._step_out(ticket)
            if ticket.backend is not None:
                self.give(ticket.backend)
            raise

    def _step_out(self, ticket: _Ticket) -> None:
        try:
            self._line.remove(ticket)
        except ValueError:
            ticket.gate.wait(LONGEST)  # it was served, and whoever serves it is about to say so

    def _hurry(self) -> None:
        """Serve the line from what lies idle."""
        try:
            backend = self._idle.pop()
        except IndexError:
            return
        if not self._next_in_line(backend):
            self._idle.append(backend)

    def _next_in_line(self, backend: Backend | None) -> bool:
        try:
            ticket = self._line.popleft()
        except IndexError:
            return False
        ticket.backend = backend
        ticket.gate.open()
        return True
