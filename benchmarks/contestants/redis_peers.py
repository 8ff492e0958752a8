"""Locks on Redis by others, as their manuals show them, and the bare commands beneath."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from benchmarks.contestants.kinds import (
    Async,
    AsyncRun,
    Blocking,
    Contestant,
    Run,
    blocking_cycles,
    cycles,
)
from benchmarks.place import Place

TTL = 30
RELEASE = (
    b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"
)


class Wire:
    """One connection on which the commands of all tasks of a turn leave together: the limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import hiredis

        self._reader, self._writer = reader, writer
        self._parser = hiredis.Reader()
        self.pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
        self._waiting: list[asyncio.Future[Any]] = []
        self._out: list[bytes] = []
        self._answered = 0
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, url: str) -> "Wire":
        at = urlsplit(url)
        return cls(*await asyncio.open_connection(at.hostname, at.port))

    def send(self, frame: bytes) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append(answer)
        if not self._out:
            loop.call_soon(self._flush)
        self._out.append(frame)
        return answer

    def _flush(self) -> None:
        self._writer.write(b"".join(self._out))
        self._out.clear()

    async def _listen(self) -> None:
        while data := await self._reader.read(1 << 16):
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                self._waiting[self._answered].set_result(reply)
                self._answered += 1
            if self._answered > 1000:
                del self._waiting[: self._answered]
                self._answered = 0

    async def close(self) -> None:
        self._listening.cancel()
        self._writer.close()


@asynccontextmanager
async def _bare(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """`SET NX PX`, then a script that deletes what is ours: no token, no queue, nothing renewed."""
    wire = await Wire.open(place.server_url)
    sha = await wire.send(wire.pack((b"SCRIPT", b"LOAD", RELEASE)))

    def on(key: str) -> AsyncRun:
        name = f"bare:{key}".encode()
        take = wire.pack((b"SET", name, b"mine", b"NX", b"PX", str(TTL * 1000).encode()))
        give = wire.pack((b"EVALSHA", sha, b"1", name, b"mine"))

        async def run(n: int) -> None:
            for _ in range(n):
                await wire.send(take)
                await wire.send(give)

        return run

    yield on
    await wire.close()


@asynccontextmanager
async def _redis_py(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    import redis.asyncio

    async with redis.asyncio.from_url(place.server_url) as client:
        yield lambda key: cycles(client.lock(f"redis-py:{key}", timeout=TTL))


@asynccontextmanager
async def _pottery(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    import redis.asyncio
    from pottery import AIORedlock

    async with redis.asyncio.from_url(place.server_url) as client:

        def on(key: str) -> AsyncRun:
            async def run(n: int) -> None:
                for _ in range(n):
                    lock = AIORedlock(key=key, masters={client}, auto_release_time=TTL)
                    await lock.acquire()
                    await lock.release()

            return run

        yield on


@asynccontextmanager
async def _aioredlock(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    from aioredlock import Aioredlock

    manager = Aioredlock([place.server_url])

    def on(key: str) -> AsyncRun:
        async def run(n: int) -> None:
            for _ in range(n):
                lock = await manager.lock(f"aioredlock:{key}", lock_timeout=TTL)
                await manager.unlock(lock)

        return run

    yield on
    await manager.destroy()


@asynccontextmanager
async def _grelmicro(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    from grelmicro.coordination import Lock
    from grelmicro.coordination.redis import RedisLockAdapter
    from grelmicro.providers.redis import RedisProvider

    async with (
        RedisProvider(place.server_url) as provider,
        RedisLockAdapter(provider=provider, prefix="grelmicro:") as backend,
    ):
        yield lambda key: cycles(Lock(key, backend=backend))


@contextmanager
def _redis_py_sync(place: Place) -> Iterator[Callable[[str], Run]]:
    import redis

    with redis.from_url(place.server_url) as client:
        yield lambda key: blocking_cycles(client.lock(f"redis-py-sync:{key}", timeout=TTL))


@contextmanager
def _python_redis_lock(place: Place) -> Iterator[Callable[[str], Run]]:
    """Without redis-py 8's time-out on sockets, which ends its waits."""
    import redis
    import redis_lock

    with redis.from_url(place.server_url, socket_timeout=None) as client:

        def on(key: str) -> Run:
            def run(n: int) -> None:
                for _ in range(n):
                    lock = redis_lock.Lock(client, key, expire=TTL)
                    lock.acquire()
                    lock.release()

            return run

        yield on


@contextmanager
def _tooz(place: Place) -> Iterator[Callable[[str], Run]]:
    from tooz import coordination

    coordinator = coordination.get_coordinator(place.server_url, b"benchmark")
    coordinator.start(start_heart=False)
    yield lambda key: blocking_cycles(coordinator.get_lock(key.encode()))
    coordinator.stop()


CYCLES: dict[str, Contestant] = {
    "bare Redis pair": Async(_bare),
    "redis.asyncio.Lock": Async(_redis_py),
    "pottery": Async(_pottery),
    "aioredlock": Async(_aioredlock),
    "grelmicro redis": Async(_grelmicro),
    "redis.Lock, sync": Blocking(_redis_py_sync),
    "python-redis-lock, sync": Blocking(_python_redis_lock),
    "tooz redis, sync": Blocking(_tooz),
}
