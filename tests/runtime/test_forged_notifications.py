"""Notifications that the store has not sent: whoever may publish wakes us, and no more."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from msgspec import msgpack

import dibs
from dibs import Client
from dibs.clock import SystemClock
from dibs.core import codec
from dibs.locks.by_id import ManualLeases
from dibs.model import Event, Notification
from dibs.runtime.notifications import ForwardingReceiver, Receiver
from dibs.session import StoreSession
from dibs.stores.sqlite import notify
from tests.runtime.conftest import SHARED, url_of
from tests.runtime.stores import TappedStore

OUT_OF_REACH = 2**52
"""A token above all real ones for decades: believed once, it poisons fencing for good."""

type Forge = Callable[[Notification], None]


class Overheard(ForwardingReceiver):
    """What arrives; with `keep` it goes no further."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver)
        self.arrived: asyncio.Queue[Notification] = asyncio.Queue()
        self.keep = False

    def deliver(self, notification: Notification) -> None:
        self.arrived.put_nowait(notification)
        if not self.keep:
            super().deliver(notification)


def by_redis(url: str) -> Iterator[Forge]:
    """A user who may publish and subscribe, and read no key."""
    rights = ("on", ">pw", "resetkeys", "allchannels", "-@all", "+@pubsub", "+auth", "+client")
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", "chat", *rights)
        where = admin.connection_pool.connection_kwargs
        with redis.Redis(where["host"], where["port"], username="chat", password="pw") as chat:
            with pytest.raises(redis.exceptions.NoPermissionError):
                chat.get("dibs:{lock:x}")

            def forge(it: Notification) -> None:
                name = b"dibs:{%b}" % it.key
                head = b"DI\3" + struct.pack(">I", len(name)) + name
                assert chat.publish(it.inbox, head + msgpack.encode(codec.encode(it))) == 1

            yield forge
        admin.execute_command("ACL", "DELUSER", "chat")


def by_postgres(url: str) -> Iterator[Forge]:
    """Anybody who may connect: `NOTIFY` needs no right."""
    with psycopg.connect(url, autocommit=True) as stranger:

        def forge(it: Notification) -> None:
            payload = json.dumps([it.key.hex(), *codec.encode(it)])
            stranger.execute("SELECT pg_notify(%s, %s)", (it.inbox, payload))

        yield forge


def by_sqlite(url: str) -> Iterator[Forge]:
    """Any user of the machine."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:

        def forge(it: Notification) -> None:
            for letter in notify.datagrams_of([it]):
                stranger.sendto(letter, "\0" + it.inbox)

        yield forge


FORGERS: dict[str, Callable[[str], Iterator[Forge]]] = {
    "redis": by_redis,
    "postgres": by_postgres,
    "sqlite": by_sqlite,
}


@pytest.fixture(params=SHARED)
def forged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Forge]]:
    url = url_of(request.param, request, tmp_path)
    for forge in FORGERS[request.param](url):
        yield url, forge


async def overheard(client: Client) -> Overheard:
    await client.status("connected")
    runtime = client.session.loop_runtime()
    runtime.receiver = heard = Overheard(runtime.receiver)
    return heard


async def waiter_of(client: Client, name: str) -> str:
    """The fingerprint of the one that waits, which anybody may see."""
    while not (waiters := (await client.status(name)).waiters):
        await asyncio.sleep(0)
    return waiters[0].lease


def clock_of(url: str) -> float:
    return SystemClock().now() if url.startswith("sqlite") else time.time()


ID = "i" * 24


async def wait_by_id(client: Client, name: str) -> asyncio.Task[Any]:
    """A waiter that brings its own id, once it is in the queue."""
    leases = ManualLeases(client.session.loop_runtime(), "lock", name)
    waiting = asyncio.create_task(leases.acquire("me", 30.0, wait=None, lease_id=ID))
    await waiter_of(client, name)
    return waiting


class Scene:
    """A client that holds the lock `x`, waits for it with another task, and keeps note of what arrives."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def begin(self) -> "Scene":
        self.heard = await overheard(self.client)
        self.held = await self.client.lock("x").acquire()
        self.waiting = asyncio.create_task(self.client.lock("x").acquire())
        self.waiter = await waiter_of(self.client, "x")
        (holder,) = (await self.client.status("x")).holders
        self.holder = holder.lease
        self.inbox = self.client.session.loop_runtime().inbox
        return self

    def grant(self, token: int, at: float) -> Notification:
        """A grant to who waits, with a proof that was guessed."""
        lease, inbox, proof = self.waiter, self.inbox, "f" * 40
        return Notification(b"lock:x", lease, inbox, "granted", token, (0,), at, 5.0, proof=proof)


async def test_nothing_that_is_forged_lets_anybody_in_or_ends_a_lease(
    forged: tuple[str, Forge],
) -> None:
    """It makes a waiter ask, and no more."""
    url, forge = forged
    async with dibs.connect(url) as client, asyncio.timeout(30):
        s = await Scene(client).begin()
        forge(s.grant(OUT_OF_REACH, clock_of(url) + 1))
        while (await s.heard.arrived.get()).token != OUT_OF_REACH:
            pass
        events: list[tuple[str, Event]] = [
            (s.holder, "revoked"),
            (s.waiter, "refused"),
            (s.waiter, "head"),
        ]
        for lease, event in events:
            forge(Notification(b"lock:x", lease, s.inbox, event, detail="so there"))
            assert (await s.heard.arrived.get()).event == event
        await client.status("x")
        assert not s.waiting.done()
        assert not s.held.lost
        await s.held.release()
        granted = await s.waiting
        assert s.held.token < granted.token < OUT_OF_REACH
        await granted.release()


async def test_the_grant_of_one_key_lets_nobody_in_for_another() -> None:
    """One id may wait for several keys: a caller of the service brings its own."""
    async with Client(StoreSession(TappedStore())) as client, asyncio.timeout(30):
        heard = await overheard(client)
        held = {name: await client.lock(name).acquire() for name in "xy"}
        waiting = {name: await wait_by_id(client, name) for name in "xy"}
        heard.keep = True
        await held["x"].release()
        push = await heard.arrived.get()
        heard.keep = False
        heard.deliver(replace(push, key=b"lock:y"))
        await client.status("y")
        assert not waiting["y"].done()
        heard.deliver(push)
        await held["y"].release()
        for name in "xy":
            granted = await waiting[name]
            (holder,) = (await client.status(name)).holders
            assert granted.token == holder.token


@pytest.mark.parametrize(
    ("change", "is_believed"),
    [
        pytest.param(lambda it: it, True, id="nothing"),
        pytest.param(lambda it: replace(it, token=it.token + 1), False, id="token"),
        pytest.param(lambda it: replace(it, slots=(1,)), False, id="slots"),
        pytest.param(lambda it: replace(it, granted_at=it.granted_at + 10), False, id="time"),
        pytest.param(lambda it: replace(it, claim_timeout=1000.0), False, id="window"),
        pytest.param(lambda it: replace(it, proof=""), False, id="no proof"),
        pytest.param(lambda it: replace(it, proof="0" * 40), False, id="another proof"),
    ],
)
async def test_a_grant_that_was_changed_or_repeated_later_is_not_believed(
    change: Callable[[Notification], Notification], *, is_believed: bool
) -> None:
    """The waiter asks the store, and gets the right one anyway."""
    store = TappedStore()
    async with Client(StoreSession(store)) as client, asyncio.timeout(30):
        s = await Scene(client).begin()
        s.heard.keep = True
        await s.held.release()
        push = await s.heard.arrived.get()
        store.batches.clear()
        client.session.loop_runtime().notifications.deliver(change(push))
        lease = await s.waiting
        assert bool(store.batches) != is_believed
        assert (lease.token, lease.slots) == (push.token, push.slots)
        await lease.release()
