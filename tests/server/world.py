"""A server of the tests' own: a thread with an event loop, real sockets, a store and records of its own."""

import asyncio
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from dibs.server.auth.policy import Scope
from dibs.server.config import ServerConfig
from dibs.server.limits import Limits
from dibs.server.main import Server
from tests.server.inside import keys_of

LONG = 30.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""

TURNS = 10
"""Rounds of the server's loop from an event on a socket to all that follows from it."""


def b64(name: str | bytes) -> str:
    """A name in a path."""
    raw = name.encode() if isinstance(name, str) else name
    return "base64:" + urlsafe_b64encode(raw).rstrip(b"=").decode()


class World:
    """One server, and those who use it."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._clients: list[httpx2.Client] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(LONG)
        if self._error is not None:
            self._thread.join(LONG)
            raise self._error

    @classmethod
    def over(cls, folder: Path | None = None, **settings: Any) -> "World":
        """A server over SQLite in a folder, or over memory."""
        limits = settings.pop("limits", Limits())
        if folder is None:
            settings.setdefault("leases", f"memory://{uuid4()}")
            settings.setdefault("records", f"memory://{uuid4()}")
        else:
            settings.setdefault("leases", f"sqlite:///{folder / 'leases.db'}")
        settings.setdefault("listen", "127.0.0.1:0")
        return cls(ServerConfig(limits=limits, **settings))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = Server(self.config)
        try:
            await server.start()
        except BaseException as error:
            self._error = error
            self._started.set()
            return
        self._server = server
        self._started.set()
        await server.run()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @property
    def url(self) -> str:
        return self.server.url

    def do(self, action: Callable[[], Any]) -> Any:
        """Have something done in the server's loop: a coroutine function, or a plain one."""

        async def run() -> Any:
            result = action()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(LONG)

    def settle(self) -> None:
        """Return once the server has seen all that its sockets had received: connections, ends, bytes."""

        async def take_turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.do(take_turns)

    def key(self, *scopes: str, prefixes: Iterable[bytes] = (), name: str = "a test") -> str:
        """A new API key."""
        keys = keys_of(self)
        wanted = {Scope(scope) for scope in scopes}
        made: str = self.do(lambda: keys.create(name, wanted, prefixes))[1]
        return made

    @property
    def admin_key(self) -> str:
        assert self.server.first_key is not None
        return self.server.first_key

    def client(self, *scopes: str, prefixes: Iterable[bytes] = (), key: str = "") -> httpx2.Client:
        """Somebody with a key of these scopes; an administrator without."""
        if not key:
            key = self.key(*scopes, prefixes=prefixes) if scopes else self.admin_key
        client = httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=LONG
        )
        self._clients.append(client)
        return client

    def close(self) -> None:
        """End the server, as a signal would."""
        for client in self._clients:
            client.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(LONG)
            assert not self._thread.is_alive()
