"""A server of the tests' own, in a thread with real sockets, and what tests ask of it."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx2
import msgspec
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Command
from dibs.runtime.aio import AsyncRuntime
from dibs.server.auth.policy import Scope
from dibs.server.config import ServerConfig
from dibs.server.limits import Limits
from dibs.server.main import Server
from dibs.server.placement.router import StoreRouter
from dibs.stores.http import wire
from dibs.stores.http.names import encoded

type Patch = pytest.MonkeyPatch
type Pool = ThreadPoolExecutor

LONG = 30.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""

TURNS = 10
"""Rounds of the server's loop from an event on a socket to all that follows from it."""


ID = "an-id-of-enough-letters-"
"""An id of a lease; tests add something to it."""

TRUST = ssl.create_default_context()  # each client would read the certificates anew


def b64(name: str | bytes) -> str:
    return "base64:" + written(name)


def written(name: str | bytes) -> str:
    """A name, or a key, as answers have it."""
    return encoded(name.encode() if isinstance(name, str) else name)


def lock(name: str | bytes) -> str:
    return f"/v1/locks/{b64(name)}"


def problem(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


def head(request: str, key: str, length: int | None = None) -> bytes:
    """The head of a request, for those who write to a socket."""
    body = "" if length is None else f"Content-Length: {length}\r\n"
    head = f"{request} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{body}\r\n"
    return head.encode()


def key(name: str, kind: str = "lock") -> bytes:
    return f"{kind}:{name}".encode()


class Client(httpx2.Client):
    """Somebody who asks a server, by HTTP."""

    def acquire(self, name: str | bytes, **query: Any) -> httpx2.Response:
        """Acquire a lock for 30 s, as `web-3`."""
        params: dict[str, Any] = {"client-id": "web-3", "ttl": 30} | query
        return self.post(lock(name), params=params)

    def acquired(self, name: str | bytes, **query: Any) -> dict[str, Any]:
        answer = self.acquire(name, **query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def release(self, name: str | bytes, lease: dict[str, Any]) -> None:
        assert self.delete(lock(name), params={"id": lease["id"]}).status_code == 200

    def renewed(self, name: str, lease: str, ttl: float = 60) -> httpx2.Response:
        return self.patch(lock(name), params={"id": lease, "ttl": ttl})

    def waiting(self, name: str) -> int:
        found: int = self.get(lock(name)).json()["waiting"]
        return found

    def batch(self, *commands: dict[str, Any]) -> list[dict[str, Any]]:
        """The replies to commands in JSON; `key` is written out here."""
        sent = [each | {"key": written(each["key"])} for each in commands]
        answer = self.post("/v1/batch", json={"commands": sent})
        assert answer.status_code == 200, answer.text
        replies: list[dict[str, Any]] = answer.json()["replies"]
        return replies

    def apply(self, *commands: Command) -> list[Any]:
        sent = wire.Batch(tuple(map(wire.to_wire, commands)))
        answer = self.post("/v1/batch", content=msgspec.json.encode(sent))
        assert answer.status_code == 200, answer.text
        told = msgspec.json.decode(answer.content, type=wire.BatchAnswer)
        return [wire.to_model(each) for each in told.replies]

    def move(self, directory: str, to: str, **deadline: float | None) -> None:
        order = {"to": to} | deadline
        assert self.put(f"/v1/move/{b64(directory)}/", json=order).status_code == 200

    def progress(self, directory: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/move/{b64(directory)}/").json()
        return found

    def moved(self, directory: str, to: str) -> bool:
        seen = self.progress(directory)
        return bool(seen["place"] == to and seen["phase"] == "settled")


class Loop(asyncio.SelectorEventLoop):
    """While it ends, uvicorn looks every 100 ms whether connections are left: here, every 10 ms."""

    longest_pause = float("inf")

    def call_later(self, delay: float, *what: Any, **how: Any) -> Any:  # type: ignore[override]
        return super().call_later(min(delay, self.longest_pause), *what, **how)


async def away(*_: object) -> Any:
    raise BackendUnavailable("it is away")


def shared(*, in_file: bool = False, **settings: Any) -> Any:
    """A fixture: one server for all tests of a file, over memory or SQLite."""

    @pytest.fixture(scope="module")
    def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
        folder = tmp_path_factory.mktemp("shared") if in_file else None
        with World.over(folder, **settings) as world:
            yield world

    return fixture


class World:
    """One server, and those who use it."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._loop = Loop()
        self._clients: list[Client] = []
        self._started = Future[Server]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.server: Server = self._started.result(LONG)

    @classmethod
    def over(cls, folder: Path | None = None, **settings: Any) -> "World":
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
            return self._started.set_exception(error)
        self._started.set_result(server)
        await server.run()

    @property
    def runtime(self) -> StoreRouter:
        """What leads commands to its stores."""
        return self.server.leases.runtime

    @property
    def store(self) -> AsyncRuntime:
        """Its only one."""
        (store,) = self.runtime.stores
        return store

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
        wanted = {Scope(scope) for scope in scopes}
        made: str = self.do(lambda: self.server.keys.create(name, wanted, prefixes))[1]
        return made

    def connected(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), LONG)

    def answer_to(self, sent: bytes) -> bytes:
        """All that comes back until the server hangs up."""
        with self.connected() as line, line.makefile("rb") as file:
            line.sendall(sent)
            return file.read()

    def revoke(self, key: str) -> None:
        self.do(lambda: self.server.keys.revoke(key.split("_")[1]))

    def cut_off(self, monkeypatch: Patch, how: Any = away) -> None:
        """Its records can no longer be reached."""
        for name in ("revision", "all", "get", "put", "append"):
            monkeypatch.setattr(self.server.records, name, how)

    @property
    def admin_key(self) -> str:
        assert self.server.first_key is not None
        return self.server.first_key

    def client(self, *scopes: str, prefixes: Iterable[bytes] = (), key: str = "") -> Client:
        """Somebody with a key of these scopes; an administrator without."""
        if not key:
            key = self.key(*scopes, prefixes=prefixes) if scopes else self.admin_key
        return self._client({"Authorization": f"Bearer {key}"})

    def stranger(self) -> Client:
        """Somebody without a key."""
        return self._client({})

    def _client(self, headers: dict[str, str]) -> Client:
        client = Client(base_url=self.url, headers=headers, timeout=LONG, verify=TRUST)
        self._clients.append(client)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, as a signal would."""
        for client in self._clients:
            client.close()
        if self._thread.is_alive():
            self._loop.longest_pause = 0.01
            self._loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(LONG)
            assert not self._thread.is_alive()


class Profile:
    """A browser's profile, as the server sees it: its cookies, and the headers of the dashboard's page."""

    def __init__(self, world: World) -> None:
        self.client = world.stranger()
        self.origin = {"origin": world.url}
        self.page = dict(self.origin)

    def sign_in(self, key: str = "", **body: str) -> httpx2.Response:
        answer = self.client.post("/ui/session", json=body or {"key": key}, headers=self.origin)
        if answer.status_code == 200:
            self.page["dibs-csrf"] = answer.json()["csrf"]
        return answer

    def sign_out_elsewhere(self) -> httpx2.Response:
        """Sign out on a connection of its own, as this client's may be busy."""
        cookie = {"cookie": f"dibs_session={self.sealed}"}
        with Client(base_url=self.client.base_url, verify=TRUST) as other:
            return other.delete("/ui/session", headers=self.page | cookie)

    @property
    def sealed(self) -> str:
        return self.client.cookies["dibs_session"]

    def with_cookie(self, cookie: str) -> int:
        """The status of a request with this cookie alone."""
        self.client.cookies.clear()
        return self.client.get("/v1/about", headers={"cookie": cookie}).status_code


def entered(world: World, *scopes: str, key: str = "") -> Profile:
    """One that has signed in with a key, or one of these scopes; an administrator's without."""
    profile = Profile(world)
    answer = profile.sign_in(key or (world.key(*scopes) if scopes else world.admin_key))
    assert answer.status_code == 200, answer.text
    return profile
