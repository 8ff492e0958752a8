"""A TCP proxy between a program and its store, whose faults you switch on.

Nothing is random. When a call returns, its fault is active. Faults add up until `heal`.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from dibs.testing.proxy_links import Direction, ProxyLink, ProxyState, ResetOrder

HOST = "127.0.0.1"
ANSWER_WITHIN = 10.0  # seconds for the proxy's thread to make a change


class FaultProxy:
    """Passes TCP connections on to `host:port`, from this machine's loopback: port `listen`, or any free one.

    It runs in a thread of its own. Connections that lost bytes, by `hang` or `drop_replies`, are
    closed by `heal`: what comes later would not fit what came before.
    """

    def __init__(self, host: str, port: int, *, listen: int = 0) -> None:
        self.host = HOST
        self._state = ProxyState((host, port))
        self._socket = bound(listen)
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dibs-fault-proxy", daemon=True
        )
        self._thread.start()
        self._run(self._listen())

    # -- where it is -------------------------------------------------------------------------------

    def url_for(self, url: str) -> str:
        """The same URL with this proxy's address in place of the store's."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"no host to replace in a URL of the scheme {parts.scheme!r}")
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{self.host}:{self.port}").geturl()

    # -- faults ------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close all connections now; new ones are welcome."""
        self._do(self._cut)

    def refuse(self) -> None:
        """Refuse new connections. Those there are go on; `cut` ends them."""
        self._do(self._accept_no_more)
        self._do(self._refuse)

    def hang(self) -> None:
        """Accept and swallow: requests do not arrive, nothing comes back, no connection ends."""
        self._do(lambda: self._swallow("to_server", "to_client"))

    def drop_replies(self) -> None:
        """Let requests pass and swallow what the store answers."""
        self._do(lambda: self._swallow("to_client"))

    def delay(
        self, seconds: float, jitter: float = 0.0, direction: Direction = "to_client"
    ) -> None:
        """Pass on everything that much later; every second piece by `jitter` more, order kept."""
        self._do(lambda: self._state.delays.update({direction: (seconds, jitter)}))

    def throttle(self, bytes_per_second: float) -> None:
        """Let no connection carry more than that in either direction."""
        if not bytes_per_second > 0:
            raise ValueError("bytes_per_second is above 0 (to stop all traffic: hang)")
        self._do(lambda: setattr(self._state, "rate", bytes_per_second))

    def reset_after(
        self, count: int, direction: Direction = "to_client", *, times: int = 1
    ) -> None:
        """Reset a connection (RST) once it has carried `count` bytes that way, counted from now.

        That happens to the first `times` connections that get so far.
        """
        self._do(lambda: setattr(self._state, "reset", ResetOrder(count, direction, times)))

    def heal(self) -> None:
        """End every fault, and the connections that lost bytes by one."""
        self._do(self._end_faults)
        self._run(self._listen())

    # -- what went through -------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._state.links)

    @property
    def accepted(self) -> int:
        """How many there have been."""
        return self._state.accepted

    @property
    def resets(self) -> int:
        """How many `reset_after` has reset."""
        return self._state.resets

    def passed(self, direction: Direction) -> int:
        """How many bytes were passed on that way."""
        return self._state.passed[direction]

    def swallowed(self, direction: Direction) -> int:
        """How many bytes that were to go that way were swallowed."""
        return self._state.swallowed[direction]

    def wait_for(self, condition: Callable[[], object], timeout: float = 10.0) -> None:
        """Wait until a condition on these counts holds, and raise `TimeoutError` if it does not."""
        with self._state.changed:
            if not self._state.changed.wait_for(condition, timeout):
                raise TimeoutError(f"not within {timeout:g} s")

    # -- its end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections, free the port, and end the thread."""
        if self._loop.is_closed():
            return
        self._do(self._accept_no_more)
        self._do(self._shut)
        self._run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_WITHIN)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- in the proxy's thread ---------------------------------------------------------------------

    def _do(self, change: Callable[[], object]) -> None:
        """Have the proxy's thread make a change, and wait until its connections have felt it."""

        async def act() -> None:
            change()
            await asyncio.sleep(0)  # a closed connection's socket is closed one turn later
            await asyncio.sleep(0)

        self._run(act())

    def _run(self, coro: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(coro, self._loop).result(ANSWER_WITHIN)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await self._loop.create_server(self._accept, sock=self._socket)

    def _accept(self) -> asyncio.Protocol:
        return ProxyLink(self._state).client

    def _accept_no_more(self) -> None:
        """Before the server closes: asyncio leaks a connection that it has accepted by then, but not made."""
        if self._server is not None:
            self._loop.remove_reader(self._socket)

    def _refuse(self) -> None:
        """Keep the port, but do not listen: a system refuses connections to it by itself."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._socket = bound(self.port)

    def _cut(self) -> None:
        for link in tuple(self._state.links):
            link.close()

    def _swallow(self, *directions: Direction) -> None:
        self._state.swallow.update(directions)
        for link in self._state.links:
            link.balance()

    def _end_faults(self) -> None:
        self._state.clear_faults()
        for link in tuple(self._state.links):
            link.heal()

    async def _end_tasks(self) -> None:
        """Wait for connections that were being made: they are cancelled, and close their sockets."""
        making = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*making, return_exceptions=True)

    def _shut(self) -> None:
        self._refuse()
        self._socket.close()
        self._cut()


def bound(port: int) -> socket.socket:
    """A socket on that port of the loopback, or on any free one, that does not listen yet."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((HOST, port))
    return made
