"""What ends an answer that takes long: the server stops, a key or session ends, the caller hangs up."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal

from dibs.server.api.problems import ApiProblem
from dibs.server.call import Call

type Told = Callable[[], None]


class Drain:
    """Whether the server is about to stop, and who wants to hear of it."""

    def __init__(self) -> None:
        self.begun = False
        self._told: set[Told] = set()

    def begin(self) -> None:
        """Tell everybody who waits. `/readyz` fails from now on."""
        self.begun = True
        for told in list(self._told):
            told()

    def watch(self, told: Told) -> Told:
        """Have it called once, when the server is about to stop; what is returned takes that back."""
        self._told.add(told)

        def forget() -> None:
            self._told.discard(told)

        if self.begun:
            asyncio.get_running_loop().call_soon(told)
        return forget


def draining() -> ApiProblem:
    """What those are told who would wait here."""
    return ApiProblem(
        "draining",
        "this server is shutting down: send the request again",
        retry_after=1,
    )


type End = Literal["draining", "key", "session", "gone"]
"""The server is about to stop, the caller's key or session has ended, or the caller has hung up."""


@contextmanager
def ends_of(call: Call, tell: Callable[[End], None]) -> Generator[None]:
    """Have `tell` called, in the loop, with each of them that comes, until this is left.

    Meanwhile nobody else may read what the caller still sends.
    """
    service = call.service

    def is_gone(_: object) -> None:
        tell("gone")

    gone = asyncio.get_running_loop().create_task(call.hung_up())
    gone.add_done_callback(is_gone)
    with ExitStack() as leave:
        leave.callback(gone.cancel)
        leave.callback(gone.remove_done_callback, is_gone)  # that we leave is no end
        leave.callback(service.drain.watch(partial(tell, "draining")))
        leave.callback(service.keys.cache.watch(call.principal.key_id, partial(tell, "key")))
        if call.session is not None:
            leave.callback(service.sessions.watch(call.session, partial(tell, "session")))
        yield
