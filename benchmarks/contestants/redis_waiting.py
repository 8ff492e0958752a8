"""Who hands one key on through Redis, and the least that a hand-off through it can cost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from benchmarks.contestants.grabbing import BlockingGrab, Grab, Release, grabbing
from benchmarks.contestants.redis_peers import TTL, Wire
from benchmarks.place import Place

TAKE = b"""if redis.call('set', KEYS[1], ARGV[1], 'NX') then return 1 end
redis.call('rpush', KEYS[2], ARGV[1]) return 0"""
GIVE = b"""local heir = redis.call('lpop', KEYS[2])
if not heir then redis.call('del', KEYS[1]) return 0 end
redis.call('set', KEYS[1], heir)
redis.call('publish', string.match(heir, '^[^/]*'), heir) return 1"""


class _Ears:
    """One process's subscription: who was granted, and who waits for that."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, asyncio.Future[None]] = {}

    async def listen(self, url: str, channel: bytes) -> asyncio.Task[None]:
        import hiredis

        at = urlsplit(url)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        subscribe: tuple[Any, ...] = (b"SUBSCRIBE", channel)  # the stub knows one item only
        writer.write(hiredis.pack_command(subscribe))
        return asyncio.create_task(self._hear(reader, writer, hiredis.Reader()))

    async def _hear(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: Any
    ) -> None:
        """`writer` is kept only because it would close the connection if it were dropped."""
        while data := await reader.read(1 << 16):
            parser.feed(data)
            while (told := parser.gets()) is not False:
                if told[0] == b"message":
                    self.waiting.pop(told[2]).set_result(None)


@asynccontextmanager
async def direct(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    """Scripts that queue, grant the next and publish it: no leases, no tokens, no expiry."""
    wire, ears = await Wire.open(place.server_url), _Ears()
    listening = await ears.listen(place.server_url, f"p{place.process}".encode())
    take, give = [await wire.send(wire.pack((b"SCRIPT", b"LOAD", text))) for text in (TAKE, GIVE)]
    release_frame = wire.pack((b"EVALSHA", give, b"2", b"{bare}", b"{bare}queue"))

    async def release() -> None:
        await wire.send(release_frame)

    def grab_for(number: int) -> Grab:
        me = f"p{place.process}/{number}".encode()
        frame = wire.pack((b"EVALSHA", take, b"2", b"{bare}", b"{bare}queue", me))

        async def grab() -> Release:
            turn = ears.waiting[me] = asyncio.get_running_loop().create_future()
            if await wire.send(frame):
                ears.waiting.pop(me, None)
            else:
                await turn
            return release

        return grab

    yield grab_for
    listening.cancel()
    await wire.close()


@asynccontextmanager
async def redis_py(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    import redis.asyncio

    async with redis.asyncio.from_url(place.server_url) as client:
        yield lambda number: grabbing(client.lock("redis-py:baton", timeout=TTL))


@asynccontextmanager
async def grelmicro(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    from grelmicro.coordination import Lock
    from grelmicro.coordination.redis import RedisLockAdapter
    from grelmicro.providers.redis import RedisProvider

    async with (
        RedisProvider(place.server_url) as provider,
        RedisLockAdapter(provider=provider) as backend,
    ):
        yield lambda number: grabbing(Lock("baton", backend=backend))


@contextmanager
def python_redis_lock(place: Place) -> Iterator[Callable[[int], BlockingGrab]]:
    import redis
    import redis_lock

    with redis.from_url(place.server_url, socket_timeout=None) as client:

        def grab_for(number: int) -> BlockingGrab:
            def grab() -> Callable[[], object]:
                lock = redis_lock.Lock(client, "baton", expire=TTL)
                lock.acquire()
                release: Callable[[], object] = lock.release
                return release

            return grab

        yield grab_for
