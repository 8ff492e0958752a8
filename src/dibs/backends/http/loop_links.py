"""The connections of an event loop for requests: one for each that is under way."""

import asyncio

from dibs.backends.http.loop_link import LoopLink, dial
from dibs.backends.http.reading import Answer
from dibs.backends.http.settings import Settings
from dibs.backends.http.trouble import broken

MAX_IDLE = 4
"""So many are kept for the next request."""


class LoopLinks:
    """Made when they are needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._links: list[LoopLink] = []
        self._parting = False

    def idle(self) -> LoopLink | None:
        """One that can be used at once."""
        for link in self._links:
            if link.idle:
                return link
        return None

    async def take(self) -> LoopLink:
        """One that can be used, until the caller awaits something else. Raises what is in the way."""
        link = self.idle()
        if link is None:
            link = await dial(self._settings)
            self._links = [each for each in self._links if each.usable]
            self._links.append(link)
            link.parting = self._parting or len(self._links) > MAX_IDLE
        return link

    async def ask(self, link: LoopLink, request: bytes, patience: float | None = None) -> Answer:
        """The answer to a request. Raises what went wrong, in our own words."""
        try:
            async with asyncio.timeout(patience):
                return await link.ask(request)
        except Exception as error:
            link.close()
            raise broken(error, self._settings, silent=link.silent) from error
        except BaseException:
            link.close()  # whoever asked has left, and the answer is nobody's
            raise

    def part(self, *, parting: bool = True) -> None:
        """From now on hang up wherever nobody waits for an answer; or not any more.

        A loop that ends leaves no time for more, and a socket left open in it would be complained of.
        """
        self._parting = parting
        for link in self._links:
            link.parting = parting
            if parting:
                link.close_if_idle()

    def close_in_child(self) -> None:
        """Let go of what a fork has copied, without a word to the service."""
        links, self._links = self._links, []
        for link in links:
            link.close_in_child()
