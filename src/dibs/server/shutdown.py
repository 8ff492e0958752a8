"""Ends of answers that take long: the server stops, a key, session or token ends, the caller hangs up."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import Caller
from dibs.server.auth.keys import KeyService
from dibs.server.auth.sessions import Sessions
from dibs.server.background import Callback, Watchers


class Shutdown:
    """Whether the server is about to stop, and the callbacks that wait for that."""

    def __init__(self) -> None:
        self.begun: bool = False
        self._watchers = Watchers[None]()

    def begin(self) -> None:
        """Call all callbacks. `/readyz` fails from now on."""
        self.begun = True
        self._watchers.call(None)

    def watch(self, callback: Callback) -> Callback:
        """Call `callback` once, when the server is about to stop. Returns a function that takes this back."""
        if self.begun:
            asyncio.get_running_loop().call_soon(callback)
        return self._watchers.add(None, callback)

    def check(self) -> None:
        """Raises `ApiProblem`, 503, if the server is about to stop."""
        if self.begun:
            raise shutting_down()


def shutting_down() -> ApiProblem:
    """A 503 for requests that would wait here."""
    return ApiProblem(
        "draining",
        "this server is shutting down: send the request again",
        retry_after=1,
    )


type End = Literal["draining", "key", "session", "token", "gone"]
"""The server is about to stop, the caller's key, session or token has ended, or the caller has hung up."""


@dataclass(eq=False)
class Endings:
    """Watches for the ends of answers that take long."""

    shutdown: Shutdown
    _keys: KeyService
    _sessions: Sessions

    @contextmanager
    def watching(self, caller: Caller, tell: Callable[[End], None]) -> Generator[None]:
        """Call `tell`, in the loop, for each end that comes before the block is left.

        Meanwhile nothing else may read what the caller still sends.
        """

        def is_gone(_: object) -> None:
            tell("gone")

        gone = asyncio.get_running_loop().create_task(caller.hung_up())
        gone.add_done_callback(is_gone)
        with ExitStack() as leave:
            leave.callback(gone.cancel)
            leave.callback(gone.remove_done_callback, is_gone)  # leaving the block is no end
            leave.callback(self.shutdown.watch(partial(tell, "draining")))
            leave.callback(self._keys.cache.watch(caller.principal.key_id, partial(tell, "key")))
            if caller.session is not None:
                leave.callback(self._sessions.watch(caller.session, partial(tell, "session")))
            yield

    @contextmanager
    def watching_token(self, caller: Caller, tell: Callable[[End], None]) -> Generator[None]:
        """Call `tell` when the caller's short-lived token is accepted no more, before the block is left."""
        ends = self._keys.token_ends_at(caller.header(b"authorization"))
        if ends is None:
            yield
            return
        left = ends - self._keys.now()
        timer = asyncio.get_running_loop().call_later(left, tell, "token")
        try:
            yield
        finally:
            timer.cancel()
