"""A connection whose answers a thread waits for; nothing suspends."""

import select
import time
from math import inf

from psycopg.pq.abc import PGconn

from dibs.stores.postgres.wire import Answer, Send, Wire


class ThreadWire(Wire):
    """Waits on the socket, for as long as it may and not a moment longer."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._readable = select.poll()
        self._readable.register(self.fd, select.POLLIN)
        self._owed = False
        self.until = inf
        """When its caller's time is over: no call takes longer."""

    async def exchange(self, send: Send, patience: float | None) -> Answer:
        end = min(inf if patience is None else time.monotonic() + patience, self.until)
        if self._owed:
            self._owed = False
            self._answer(end)
        send()
        self._send_all(end)
        return self._answer(end)

    def begin(self, send: Send) -> None:
        if not self._owed and not self.is_cut:
            self._owed = True
            send()
            self._send_all(time.monotonic() + 1.0)

    async def next_pushes(self, patience: float) -> list[str]:
        end = time.monotonic() + patience
        while not (found := self.pushes()):
            try:
                _wait(self._readable, end)
            except TimeoutError:
                return []
            self.pgconn.consume_input()
        return found

    @property
    def is_sound(self) -> bool:
        """The server has not closed it either, so that a call needn't find out."""
        try:
            while not self.is_cut and self._readable.poll(0):
                self.pgconn.consume_input()
        except Exception:  # noqa: BLE001  # whatever it was, another is made
            self.cut()
        return not self.is_cut

    def _send_all(self, end: float) -> None:
        """A large batch doesn't fit into the socket at once, and the server may answer meanwhile."""
        if self.flush():
            return
        both = select.poll()
        both.register(self.fd, select.POLLIN | select.POLLOUT)
        while not self.flush():
            for _, events in _wait(both, end):
                if events & select.POLLIN:
                    self.pgconn.consume_input()

    def _answer(self, end: float) -> Answer:
        answer = self.received()
        while not answer:
            _wait(self._readable, end)
            answer = self.receive()
        return answer


def _wait(poll: select.poll, end: float) -> list[tuple[int, int]]:
    left = (end - time.monotonic()) * 1000
    events = poll.poll(None if left == inf else max(left, 0.0))
    if not events:
        raise TimeoutError
    return events
