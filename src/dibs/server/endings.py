"""What ends an answer that takes long, whatever it waits for."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal

from dibs.server.call import Call, hung_up

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

    gone = asyncio.get_running_loop().create_task(hung_up(call))
    gone.add_done_callback(is_gone)
    with ExitStack() as leave:
        leave.callback(gone.cancel)
        leave.callback(gone.remove_done_callback, is_gone)  # that we leave is no end
        leave.callback(service.drain.watch(partial(tell, "draining")))
        leave.callback(service.keys.watch(call.principal.key_id, partial(tell, "key")))
        if call.session is not None:
            leave.callback(service.sessions.watch(call.session, partial(tell, "session")))
        yield
