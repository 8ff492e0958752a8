"""Ends of answers that take long: the server stops, a key or session ends, the caller hangs up."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import Caller
from dibs.server.auth.key_cache import KeyCache
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


type End = Literal["draining", "key", "session", "gone"]
"""The server is about to stop, the caller's key or session has ended, or the caller has hung up."""


@dataclass(eq=False)
class Endings:
    """Watches for the ends of answers that take long."""

    shutdown: Shutdown
    _keys: KeyCache
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
            leave.callback(self._keys.watch(caller.principal.key_id, partial(tell, "key")))
            if caller.session is not None:
                leave.callback(self._sessions.watch(caller.session, partial(tell, "session")))
            yield
