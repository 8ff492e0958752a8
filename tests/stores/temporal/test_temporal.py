"""Connections to brokers of Temporal: what is one call, what waits there, and whose client it is."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.client import WorkflowExecutionStatus as Is
from temporalio.service import RPCError
from temporalio.worker import Worker

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable, IncompatibleVersion
from dibs.model import (
    Acquire,
    Failed,
    Granted,
    Inspect,
    Queued,
    Release,
    Released,
    Renew,
    Revoke,
    Status,
)
from dibs.stores.registry import store_for
from dibs.stores.temporal import client as temporal_client
from dibs.stores.temporal import ids, wire
from dibs.stores.temporal import store as temporal_store
from dibs.stores.temporal.ids import broker_id
from dibs.stores.temporal.wire import BrokerInput, text_of
from dibs.temporal.worker.served import ACTIVITIES, WORKFLOWS
from tests.servers.temporal import TemporalServer
from tests.stores.sides import Side, acquire, both_sides, granted, release
from tests.temporal.brokers import QUICK
from tests.temporal.turned import turned
from tests.temporal.workers import PATIENCE

pytestmark = pytest.mark.once


class Looker:
    """Asks the server of a store, in a loop of its own, from either world."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._address = urlsplit(url).netloc

    def ask[T](self, question: Callable[[Client], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await question(await Client.connect(self._address))

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, asked()).result()

    def state(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """Whether a workflow runs, and how it ended; None: there never was one."""

        async def look(client: Client) -> WorkflowExecutionStatus | None:
            try:
                return (await client.get_workflow_handle(workflow_id).describe()).status
            except RPCError:
                return None

        return self.ask(look)

    def updates(self, workflow_id: str) -> int:
        """How many updates its newest run has taken."""

        async def look(client: Client) -> int:
            history = await client.get_workflow_handle(workflow_id).fetch_history()
            events = history.events
            return sum(
                each.HasField("workflow_execution_update_accepted_event_attributes")
                for each in events
            )

        return self.ask(look)

    def terminate(self, workflow_id: str) -> None:
        """End it from outside."""

        async def end(client: Client) -> None:
            await client.get_workflow_handle(workflow_id).terminate()

        self.ask(end)

    def start_broker(self, key: bytes) -> None:
        """As a fair workflow does it."""
        queue = queue_of(self._url)

        async def start(client: Client) -> None:
            given = BrokerInput(text_of(key))
            await client.start_workflow(
                ids.BROKER,
                given,
                id=ids.broker_id(key),
                task_queue=queue,
                memo={ids.MEMO: text_of(key)},
            )

        self.ask(start)


def queue_of(url: str) -> str:
    """The queue that a store's URL names."""
    return parse_qs(urlsplit(url).query)["task_queue"][0]


def new_key(kind: str = "lock") -> bytes:
    """A key that no other test uses."""
    return f"{kind}:{uuid4().hex}".encode()


async def queue(backend: Any, name: str, key: bytes) -> Queued:
    (reply,) = await backend.apply([acquire(name, key, queue=True, inbox=backend.inbox)])
    assert isinstance(reply, Queued), reply
    return reply


@both_sides
async def test_what_is_granted_at_once_costs_one_update(temporal_url: str, side: Side) -> None:
    look, key = Looker(temporal_url), new_key()

    backend = await side.open(store_for(temporal_url))
    ask = acquire("a", key, queue=True, inbox=backend.inbox)
    granted((await backend.apply([ask]))[0])
    assert look.updates(broker_id(key)) == 1
    assert await backend.apply([release("a", key)]) == [Released()]
    assert look.updates(broker_id(key)) == 2


@both_sides
async def test_who_waits_has_one_call_at_the_broker_that_ends_with_its_place(
    temporal_url: str, side: Side
) -> None:
    look, key = Looker(temporal_url), new_key()

    holder, waiter = (
        await side.open(store_for(temporal_url)),
        await side.open(store_for(temporal_url)),
    )
    await holder.apply([acquire("a", key)])
    await queue(waiter, "b", key)
    await queue(waiter, "c", key)
    while look.updates(broker_id(key)) < 4:  # three calls, and one that waits
        await side.pause(0.02)
    await holder.apply([release("a", key)])
    push = await side.pushed(waiter, "granted")
    assert push.key == key
    await waiter.apply([release("b", key), release("c", key)])
    await side.pause(0.3)
    before = look.updates(broker_id(key))
    await side.pause(0.3)
    assert look.updates(broker_id(key)) == before


@both_sides
async def test_a_holder_that_renews_hears_of_its_revocation(temporal_url: str, side: Side) -> None:
    key = new_key()

    backend = await side.open(store_for(temporal_url))
    await backend.apply([acquire("a", key, queue=True, inbox=backend.inbox)])
    await backend.apply([Renew(key, "a", 30.0, backend.inbox)])
    await backend.apply([Revoke(key, None, "upgrade")])
    assert (await side.pushed(backend, "revoked")).detail == "upgrade"


@both_sides
async def test_who_waits_at_a_broker_that_is_ended_is_told_and_asks_again(
    temporal_url: str, side: Side
) -> None:
    look, key = Looker(temporal_url), new_key()

    holder, waiter = (
        await side.open(store_for(temporal_url)),
        await side.open(store_for(temporal_url)),
    )
    await holder.apply([acquire("a", key)])
    await queue(waiter, "b", key)
    while look.updates(broker_id(key)) < 3:
        await side.pause(0.02)
    look.terminate(broker_id(key))
    assert "missed" in str(await side.broken(waiter))
    await holder.apply([acquire("a2", key)])
    await queue(waiter, "b", key)
    await holder.apply([release("a2", key)])
    assert (await side.pushed(waiter, "granted")).key == key


@both_sides
async def test_a_push_that_can_not_be_read_is_told_and_the_next_is_heard(
    temporal_url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()

    def fail(*news: object) -> None:
        monkeypatch.undo()
        raise TypeError("no such thing")

    holder, waiter = (
        await side.open(store_for(temporal_url)),
        await side.open(store_for(temporal_url)),
    )
    await holder.apply([acquire("a", key)])
    monkeypatch.setattr(temporal_store, "decode_notification", fail)
    await queue(waiter, "b", key)
    await holder.apply([release("a", key)])
    assert "no such thing" in str(await side.broken(waiter))
    granted((await waiter.apply([acquire("b", key, inbox=waiter.inbox)]))[0])


@both_sides
async def test_ten_that_wait_delay_no_release(temporal_url: str, side: Side) -> None:
    """Five may block in a broker; with ten, a server would keep the release off for seconds."""
    key = new_key()

    holder = await side.open(store_for(temporal_url))
    waiters = [await side.open(store_for(temporal_url)) for _ in range(10)]
    await holder.apply([acquire("a", key, ttl=600.0)])
    for number, waiter in enumerate(waiters):
        await queue(waiter, f"w{number}", key)
    await side.pause(0.3)
    began = time.monotonic()
    assert await holder.apply([release("a", key)]) == [Released()]
    assert time.monotonic() - began < 1.0
    assert (await side.pushed(waiters[0], "granted")).key == key


@both_sides
async def test_a_heartbeat_that_finds_a_waiter_in_front_ends_its_pause(
    temporal_url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_store, "LEAST_TURN", 600.0)
    monkeypatch.setattr(temporal_store, "MAX_FAR_BACK_PAUSE", 600.0)
    key = new_key()
    holder = await side.open(store_for(temporal_url))
    waiters = [await side.open(store_for(temporal_url)) for _ in range(7)]
    await holder.apply([acquire("a", key, ttl=600.0)])
    for number, waiter in enumerate(waiters):
        await queue(waiter, f"w{number}", key)
    await holder.apply([release(f"w{number}", key) for number in range(6)])
    (reply,) = await waiters[6].apply([Renew(key, "w6", 30.0, waiters[6].inbox)])
    assert isinstance(reply, Queued), reply
    await holder.apply([release("a", key)])
    assert (await side.pushed(waiters[6], "granted")).key == key


def test_those_behind_the_first_five_are_granted_soon_as_well(temporal_url: str) -> None:
    """They ask again in time, and then block in the broker themselves."""
    with dibs.sync.connect(temporal_url) as client:
        name = new_key().decode().partition(":")[2]
        held = client.lock(name, ttl=600).acquire()
        order: list[int] = []

        def turn(number: int) -> None:
            with dibs.sync.connect(temporal_url) as own, own.lock(name, wait=60):
                order.append(number)

        with ThreadPoolExecutor(8) as threads:
            turns = []
            for number in range(8):
                turns.append(threads.submit(turn, number))
                while client.status(name).waiting <= number:
                    time.sleep(0.01)
            held.release()
            began = time.monotonic()
            for each in turns:
                each.result()
        assert order == [*range(8)]
        assert time.monotonic() - began < 10.0


@both_sides
async def test_looking_at_what_nobody_holds_starts_nothing(temporal_url: str, side: Side) -> None:
    look, key = Looker(temporal_url), new_key()

    backend = await side.open(store_for(temporal_url))
    (status,) = await backend.apply([Inspect(key)])
    assert isinstance(status, Status)
    await backend.apply([Renew(key, "a", 30.0), Release(key, "a")])
    assert look.state(broker_id(key)) is None
    await backend.apply([Release(key, "a", tombstone=60.0)])
    assert look.state(broker_id(key)) is Is.RUNNING, "a burial is to be remembered"


@both_sides
async def test_a_long_name_is_listed_by_others(temporal_url: str, side: Side) -> None:
    """Its broker's ID has but a hash; its memo has the key."""
    key = new_key() + b"/" + b"\xff" * 400

    await (await side.open(store_for(temporal_url))).apply([acquire("a", key)])
    other = await side.open(store_for(temporal_url))
    end = time.monotonic() + 20
    found: list[bytes] = []
    while not found and time.monotonic() < end:  # the server's index lags behind a little
        found = [status.key for status in (await other.scan(key[:40], None, 10)).items]
        await side.pause(0.05)
    assert found == [key]


@both_sides
async def test_many_who_ask_at_once_share_calls(temporal_url: str, side: Side) -> None:
    """A server takes ten updates of a workflow at a time, and 2,000 of a run."""
    look, key = Looker(temporal_url), new_key()

    async def at_once(backend: Any, asks: list[Acquire]) -> list[Any]:
        if side.mode == "blocking":  # a backend of one thread, which asks for all of its threads
            return list(await backend.apply(asks))
        found = await asyncio.gather(*(backend.apply([ask]) for ask in asks))
        return [reply for (reply,) in found]

    backend = await side.open(store_for(temporal_url))
    replies = await at_once(backend, [acquire(f"n{n}", key, capacity=60) for n in range(60)])
    assert [type(reply) for reply in replies] == [Granted] * 60
    assert len({reply.slots for reply in replies}) == 60
    assert look.updates(broker_id(key)) <= 3


@both_sides
async def test_a_client_that_is_newer_than_the_workers_is_told(
    temporal_url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BrokerCall", partial(wire.BrokerCall, format=wire.FORMAT + 1))

    backend = await side.open(store_for(temporal_url))
    with pytest.raises(
        IncompatibleVersion,
        match=f"the worker of this broker knows {wire.FORMAT}: update that first",
    ):
        await backend.apply([acquire("a", new_key())])


@both_sides
async def test_what_is_too_large_is_refused_before_it_harms_its_key(
    temporal_url: str, side: Side
) -> None:
    """Between 2 and 4 MB the server takes it, and the broker could never answer."""
    key = new_key()

    backend = await side.open(store_for(temporal_url))
    large = Acquire(key, "a", "me", 30.0, capacity=1000, note="x" * 3_000_000)
    fitting = [acquire(f"n{n}", key, capacity=1000, note="y" * 1_900) for n in range(300)]
    replies = await backend.apply([acquire("b", key, capacity=1000), large, *fitting])
    assert replies[1] == Failed("invalid", replies[1].detail)
    assert f"{wire.TEXTS} bytes" in replies[1].detail
    rest = [replies[0], *replies[2:]]
    assert [reply.slots for reply in rest] == [(slot,) for slot in range(301)]


async def test_it_goes_where_the_client_goes_and_speaks_as_it_does(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"codec-{uuid4().hex}"
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
    theirs = await Client.connect(temporal_server.address, data_converter=turned)
    served = Worker(
        theirs, task_queue=queue, workflows=WORKFLOWS, activities=ACTIVITIES, workflow_runner=QUICK
    )
    name = uuid4().hex
    async with served, dibs.connect(client=theirs) as client:
        assert client.url == temporal_server.url
        async with client.lock(name, wait=30):
            assert [each.name async for each in client.list(name)] == [name.encode()]


async def test_a_broker_whose_name_only_others_can_read_is_left_out_of_a_list(
    temporal_server: TemporalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a long name a broker's ID has but a hash, and its memo was written by another converter."""
    hidden = new_key() + b"/" + b"n" * 400
    looker = Looker(f"{temporal_server.url}?task_queue=codec-{uuid4().hex}")
    looker.start_broker(hidden)
    theirs = await Client.connect(temporal_server.address, data_converter=turned)
    async with dibs.connect(client=theirs) as client:
        async with asyncio.timeout(PATIENCE):
            while broker_id(hidden) not in caplog.text:  # the server's index lags behind a little
                assert not [each async for each in client.list(uuid4().hex)]
                await asyncio.sleep(0.05)
    looker.terminate(broker_id(hidden))


def test_a_client_of_something_else_is_refused() -> None:
    with pytest.raises(dibs.NotConfigured, match="or from a client of temporalio"):
        dibs.connect(client=BackendUnavailable())


HOUR = 3600.0


class Off:
    """A clock that is so many seconds ahead."""

    def __init__(self, by: float) -> None:
        self._by = by

    def time(self) -> float:
        return time.time() + self._by

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
async def test_a_clock_that_is_an_hour_off(
    temporal_url: str, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_store, "time", Off(by))
    monkeypatch.setattr(temporal_client, "time", Off(by))
    async with dibs.connect(temporal_url) as client:
        lease = await client.lock(uuid4().hex, ttl=30).acquire(wait=30)
        assert lease.token > 0
        await lease.release()
        found = {each.about: each for each in await client.examine()}
    if by > 0:
        assert found["worker"].level == "warning"
        assert "this machine's clock seems to be ahead" in found["worker"].told
    else:
        assert found["worker"].level == "ok"


async def test_nobody_is_nobody_whatever_the_clock_says(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_client, "time", Off(-HOUR))
    url = f"{temporal_server.url}?task_queue=nobody-{uuid4().hex}"
    async with dibs.connect(url) as client:
        with pytest.raises(BackendUnavailable, match="nobody serves"):
            await client.lock(uuid4().hex, ttl=30).acquire(wait=2)


async def test_a_broker_on_a_queue_that_nobody_serves_is_named(
    temporal_url: str, temporal_server: TemporalServer
) -> None:
    """Whoever started it there named another queue than we do, which is served."""
    nowhere, client = f"typo-{uuid4().hex[:8]}", await Client.connect(temporal_server.address)
    key = f"lock:{nowhere}".encode()
    stray = await client.start_workflow(
        ids.BROKER, wire.BrokerInput(wire.text_of(key)), id=ids.broker_id(key), task_queue=nowhere
    )
    async with dibs.connect(temporal_url) as store:
        told = (
            f"nobody serves the task queue '{nowhere}', on which the broker {stray.id} in .*"
            f"terminate --workflow-id {stray.id}"
        )
        with pytest.raises(dibs.BackendUnavailable, match=told):
            await store.lock(nowhere, ttl="9s").acquire(wait=0)
    await stray.terminate()
