"""One connection to the Redis that has the records: alone, by Sentinel, or the right node of a Cluster."""

import asyncio
from typing import Any

from dibs.backends.redis import greeting, sentinel
from dibs.backends.redis.link import HiredisError, Link, ReplyError, pack
from dibs.backends.redis.loop_link import LoopDial
from dibs.backends.redis.settings import Endpoint, Settings
from dibs.backends.redis.slots import read_redirection
from dibs.backends.redis.trouble import broken, code_of
from dibs.errors import BackendUnavailable, DibsError

ATTEMPTS = 5
"""So often a command is sent on, at most."""

_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}
"""With these answers another server may be the one to ask."""


class Line:
    """Asks one command after the other; connects when it has to."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dial = LoopDial()
        self._turn = asyncio.Lock()
        self._link: Link | None = None
        self._endpoint: Endpoint | None = None
        """The node of the Cluster that has the records, once that is known."""

    @property
    def endpoint(self) -> Endpoint:
        """Whom we talk to, for messages."""
        return self._link.endpoint if self._link else self._settings.endpoints[0]

    def close(self) -> None:
        """Hang up."""
        link, self._link, self._endpoint = self._link, None, None
        if link is not None:
            link.close()

    async def ask(self, *words: Any, again: bool = False) -> Any:
        """The answer to a command, which may be a `ReplyError`. Raises our own errors.

        With `again` it is asked once more over another connection if the first one broke.
        """
        async with self._turn:
            try:
                return await self._ask(words)
            except BackendUnavailable:
                if not again:
                    raise
            return await self._ask(words)

    async def _ask(self, words: tuple[Any, ...]) -> Any:
        answer: Any = None
        data = pack(words)
        for _ in range(ATTEMPTS):
            answer = (await self._send(data, 1))[-1]
            code = code_of(answer) if isinstance(answer, ReplyError) else ""
            if code in _ELSEWHERE:
                self.close()
            if code not in ("MOVED", "ASK") or self._settings.topology != "cluster":
                return answer
            _, _, there = read_redirection(str(answer), self.endpoint)
            self.close()
            self._endpoint = there
            if code == "ASK":
                answer = (await self._send(pack((b"ASKING",)) + data, 2))[-1]
                self.close()
                if not isinstance(answer, ReplyError):
                    return answer
        return answer

    async def _send(self, data: bytes, count: int) -> list[Any]:
        link = self._link
        if link is None or not link.usable:
            link = self._link = await self._connected()
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await link.ask(data, count)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | HiredisError):
                raise broken(error, link.endpoint) from error
            raise

    async def _connected(self) -> Link:
        settings = self._settings
        if settings.topology == "sentinel":
            return await sentinel.connect(settings, self._dial)
        endpoints = [self._endpoint] if self._endpoint else list(settings.endpoints)
        self._endpoint = None
        errors: list[DibsError] = []
        for endpoint in endpoints:
            try:
                return await greeting.connect(settings, self._dial, endpoint)
            except BackendUnavailable as error:
                errors.append(error)
        raise BackendUnavailable("; ".join(dict.fromkeys(map(str, errors)))) from errors[0]
