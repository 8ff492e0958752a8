"""The end of a server, foretold: what waits is told to go on elsewhere, what runs comes to its end."""

import asyncio
from collections.abc import Callable

from dibs.server.problems import Problem

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


def draining() -> Problem:
    """What those are told who would wait here."""
    return Problem(
        "draining",
        "this server is shutting down: send the request again",
        retry_after=1,
    )
