"""A client's mailbox on a real server: it loses no news, waits for some, and ends when nobody comes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer

from dibs.core.codec import decode_notification
from dibs.core.names import fingerprint
from dibs.model import Queued, Release
from dibs.stores.temporal.broker.mailbox import DibsMailbox
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.wire import News, text_of
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import PASSING, QUICK, Brokered, HastyMailbox, serving

pytestmark = [pytest.mark.once]


class Box:
    """One mailbox and its client's side."""

    def __init__(self, here: Brokered) -> None:
        self.inbox = uuid4().hex
        self._here = here
        self.upto = 0

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self._here.client.get_workflow_handle(ids.mailbox_id(self.inbox))

    async def start(self) -> None:
        await self._here.client.start_workflow(
            ids.MAILBOX, id=ids.mailbox_id(self.inbox), task_queue=self._here.queue
        )

    async def push(self, note: str) -> None:
        await self.handle.signal(ids.NEWS, News(text_of(note.encode())))

    async def take(self, seconds: float = 10.0) -> list[Any]:
        while True:
            try:
                found = await self.handle.execute_update(ids.TAKE, args=[self.upto, seconds])
            except RPCError as error:
                if error.status not in PASSING:
                    raise
            else:
                self.upto = found["upto"]
                news: list[Any] = found["news"]
                return news


@pytest.fixture
async def here(temporal_server: TemporalServer) -> AsyncIterator[Brokered]:
    async with serving(temporal_server.address) as here:
        yield here


async def test_it_waits_until_something_is_pushed(here: Brokered) -> None:
    box = Box(here)
    await box.start()
    taking = asyncio.create_task(box.take())
    await asyncio.sleep(0.2)
    assert not taking.done()
    await box.push("one")
    (found,) = await taking
    assert found["key"] == text_of(b"one")
    assert await box.take(0.01) == []


async def test_what_was_not_yet_received_is_there_again(here: Brokered) -> None:
    box = Box(here)
    await box.start()
    for note in ("one", "two"):
        await box.push(note)
    while len(await box.take(1.0)) < 2:
        box.upto = 0  # as if the answer had been lost
    box.upto = 1
    (second,) = await box.take(1.0)
    assert second["key"] == text_of(b"two")
    assert box.upto == 2


async def test_a_number_from_a_mailbox_before_this_one_hides_nothing(here: Brokered) -> None:
    box = Box(here)
    await box.start()
    box.upto = 57
    await box.push("one")
    assert len(await box.take()) == 1
    assert box.upto == 1


async def test_a_broker_pushes_to_it(here: Brokered) -> None:
    box = Box(here)
    await box.start()
    await here.ask(here.acquire("a"))
    assert isinstance(await here.ask(here.acquire("b", inbox=box.inbox)), Queued)
    await here.ask(Release(here.key, "a"))
    (news,) = await box.take()
    assert news["key"] == text_of(here.key)
    (packed,) = news["notifications"]
    push = decode_notification(packed, here.key, box.inbox)
    assert (push.event, push.lease) == ("granted", fingerprint("b"))


async def test_a_broker_whose_push_finds_no_mailbox_goes_on(here: Brokered) -> None:
    await here.ask(here.acquire("a"))
    await here.ask(here.acquire("b", inbox=uuid4().hex))
    await here.ask(Release(here.key, "a"))
    (holder,) = (await here.status()).holders
    assert holder.owner == "owner of b"


async def test_news_survive_when_it_continues_as_new(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, HastyMailbox) as here:
        box = Box(here)
        await box.start()
        first = (await box.handle.describe()).run_id
        heard: list[Any] = []

        async def push() -> None:
            for number in range(40):
                await box.push(str(number))

        pushing = asyncio.create_task(push())
        while len(heard) < 40:
            heard += await box.take(0.5)
        await pushing
        assert [news["key"] for news in heard] == [text_of(str(n).encode()) for n in range(40)]
        assert (await box.handle.describe()).run_id != first
        old = here.client.get_workflow_handle(box.handle.id, run_id=first)
        history = await old.fetch_history()
        replayer = Replayer(workflows=[HastyMailbox], workflow_runner=QUICK)
        await replayer.replay_workflow(WorkflowHistory(box.handle.id, history.events))


async def test_it_ends_when_nobody_comes_to_take_it(temporal_server: TemporalServer) -> None:
    async with serving(temporal_server.address, HastyMailbox) as here:
        box = Box(here)
        await box.start()
        assert await box.take(1.2) == []
        await box.handle.result()


async def test_it_keeps_the_newest(here: Brokered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DibsMailbox, "KEPT", 2)
    box = Box(here)
    await box.start()
    for note in ("one", "two", "three"):
        await box.push(note)
    upto, heard = 0, list[Any]()
    while upto < 3:
        heard, upto, box.upto = await box.take(), box.upto, 0
    assert [news["key"] for news in heard] == [text_of(b"two"), text_of(b"three")]


async def test_it_keeps_no_more_than_one_message_holds(temporal_server: TemporalServer) -> None:
    """Neither an answer nor what goes to its next run may be larger than Temporal takes."""
    large = [f"{number:02}".ljust(75_000, "x") for number in range(30)]  # 3 MB
    async with serving(temporal_server.address, HastyMailbox) as here, asyncio.timeout(60.0):
        box = Box(here)
        await box.start()
        for note in large:
            await box.push(note)
        heard: list[Any] = []
        while box.upto < len(large):
            heard += await box.take()
        assert heard[-1]["key"] == text_of(large[-1].encode())
        assert len(heard) >= 8
