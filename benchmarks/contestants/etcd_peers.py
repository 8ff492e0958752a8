"""Locks on etcd by others, as their manuals show them, and the bare transactions beneath."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant, Program
from benchmarks.contestants.web import connect
from benchmarks.place import Place

TTL = 30
VALUE = b64encode(b"x" * 400).decode()
"""About what a lock of ours is in etcd."""
AT_ONCE = 32
"""Leases that are revoked at the same time."""

type Swap = Callable[[], Awaitable[None]]


def name(place: Place, key: str) -> str:
    """A key that no other contestant uses."""
    return urlsplit(place.server_url).path[1:] + "/" + key


def gateway(place: Place) -> Callable[[str], Swap]:
    """Make, for a key, what writes it if it still has the revision of the write before."""

    def on(key: str) -> Swap:
        client = connect(place.server_url)  # each has its own: one keeps fewer connections than 64
        at, revision = b64encode(name(place, key).encode()).decode(), "0"

        async def swap() -> None:
            nonlocal revision
            compare = {"key": at, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
            write = {"requestPut": {"key": at, "value": VALUE}}
            body = msgspec.json.encode({"compare": [compare], "success": [write]})
            answer = await client.request(b"POST", b"/v3/kv/txn", b"", body)
            found = msgspec.json.decode(answer.body)
            if not found.get("succeeded"):
                raise RuntimeError(f"nothing was written: {found}")
            revision = found["header"]["revision"]

        return swap

    return on


@asynccontextmanager
async def _bare(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Two transactions by the JSON gateway, each task on a connection that is kept."""
    swap_of = gateway(place)

    def on(key: str) -> AsyncRun:
        swap = swap_of(key)

        async def run(n: int) -> None:
            for _ in range(n):
                await swap()
                await swap()

        return run

    yield on


@asynccontextmanager
async def aetcd_client(place: Place) -> AsyncIterator[Any]:
    import aetcd

    at = urlsplit(place.server_url)
    async with aetcd.Client(host=at.hostname or "", port=at.port or 0) as client:
        yield client


@asynccontextmanager
async def _aetcd(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """It leaves a lease behind for each acquire; they are revoked at the end, for those who come next."""
    leases: list[Any] = []
    async with aetcd_client(place) as client:

        def on(key: str) -> AsyncRun:
            async def run(n: int) -> None:
                for _ in range(n):
                    lock = client.lock(name(place, key).encode(), ttl=TTL)
                    if not await lock.acquire():
                        raise RuntimeError("not acquired")
                    leases.append(lock.lease)
                    await lock.release()

            return run

        yield on

        async def revoke() -> None:
            while leases:
                await leases.pop().revoke()

        await asyncio.gather(*(revoke() for _ in range(AT_ONCE)))


def etcd_client(place: Place) -> Callable[[str], Any]:
    """Make, for a key, a new lock of etcd-client-py: a context manager."""
    from etcd_client import Client, EtcdLockOption

    at = urlsplit(place.server_url)
    client = Client([f"http://{at.hostname}:{at.port}"])
    return lambda key: client.with_lock(
        EtcdLockOption(lock_name=name(place, key).encode(), ttl=TTL)
    )


@asynccontextmanager
async def _etcd_client(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """`with_lock` connects anew each time."""
    lock_of = etcd_client(place)

    def on(key: str) -> AsyncRun:
        async def run(n: int) -> None:
            for _ in range(n):
                async with lock_of(key):
                    pass

        return run

    yield on


def _mutexes(place: Place, tasks: int, seconds: float) -> list[str | Path]:
    """One session and one `concurrency.Mutex` for each task, which lives as long as a turn."""
    from tests.servers.binaries import kube_program

    at = urlsplit(place.server_url)
    command: list[str | Path] = [kube_program().path, "mutex", "-each"]
    command += ["-endpoint", f"http://{at.hostname}:{at.port}", "-name", name(place, "mutex")]
    return [*command, "-tasks", str(tasks), "-seconds", str(seconds)]


CYCLES: dict[str, Contestant] = {
    "bare etcd pair": Async(_bare),
    "aetcd": Async(_aetcd),
    "etcd-client-py": Async(_etcd_client),
    "Go's concurrency.Mutex": Program(_mutexes),
}
