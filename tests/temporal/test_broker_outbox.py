"""What a broker sends, without a server: no more at once than a message holds, and in order."""

import asyncio
import json
import logging
from dataclasses import asdict

import pytest
from temporalio import workflow

from dibs.stores.temporal.wire import BrokerAnswer, News
from dibs.temporal.broker import outbox as broker_outbox
from dibs.temporal.broker.outbox import A_SIGNAL, AT_A_TIME, KeptNotifications, Outbox
from dibs.temporal.broker.owners import inbox_of

RUN = "01a201dc-139d-7c25-967c-4abd85365a06"
LONG = "n" * 1_000


class Addressee:
    """Keeps the signals that it gets, until they are let in."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.open = asyncio.Event()

    async def signal(self, name: str, news: News) -> None:
        self.news.append(news)
        await self.open.wait()


@pytest.fixture
def addressee(monkeypatch: pytest.MonkeyPatch) -> Addressee:
    found = Addressee()
    monkeypatch.setattr(broker_outbox, "_addressee", lambda inbox: found)
    monkeypatch.setattr(workflow, "logger", logging.getLogger("dibs"))
    return found


async def all_sent(outbox: Outbox) -> None:
    while not outbox.is_empty:
        outbox.send()
        await asyncio.sleep(0)


async def test_much_goes_in_several_signals_and_in_order(addressee: Addressee) -> None:
    granted: list[str] = []
    outbox = Outbox("", lambda inbox, ids, there: granted.extend(ids))
    inbox = inbox_of("w", RUN)
    for number in range(500):
        outbox.put(inbox, BrokerAnswer([[LONG]], number), [f"a{number}"])
        outbox.put(inbox, [number, LONG])
    addressee.open.set()
    await all_sent(outbox)
    assert max(len(json.dumps(asdict(each))) for each in addressee.news) < A_SIGNAL + 2_500
    assert [each.number for news in addressee.news for each in news.answers] == [*range(500)]
    assert [each[0] for news in addressee.news for each in news.notifications] == [*range(500)]
    assert granted == [f"a{number}" for number in range(500)]


async def test_one_message_goes_however_large_it_is(addressee: Addressee) -> None:
    outbox = Outbox("", lambda inbox, ids, there: None)
    outbox.put(inbox_of("w", RUN), [LONG * 100])
    outbox.put(inbox_of("w", RUN), [LONG])
    addressee.open.set()
    await all_sent(outbox)
    assert [len(each.notifications) for each in addressee.news] == [1, 1]


async def test_not_all_are_written_to_at_once(addressee: Addressee) -> None:
    outbox = Outbox("", lambda inbox, ids, there: None)
    for number in range(2 * AT_A_TIME):
        outbox.put(inbox_of(f"w{number}", RUN), BrokerAnswer([[LONG]]))
    outbox.send()
    await asyncio.sleep(0)
    assert len(addressee.news) == AT_A_TIME
    addressee.open.set()
    await all_sent(outbox)
    assert len(addressee.news) == 2 * AT_A_TIME


async def test_what_was_not_sent_is_sent_by_the_next_run(addressee: Addressee) -> None:
    granted: list[str] = []
    before = Outbox("", lambda inbox, ids, there: None)
    before.put(inbox_of("w", RUN), BrokerAnswer([["x"]], 7), ["a"])
    before.put(inbox_of("w", RUN), ["y"])
    state = json.loads(json.dumps(before.dump()))
    after = Outbox("", lambda inbox, ids, there: granted.extend(ids), state)
    addressee.open.set()
    await all_sent(after)
    assert addressee.news == [News("", [["y"]], [BrokerAnswer([["x"]], 7)])]
    assert granted == ["a"]


@pytest.mark.parametrize("inbox", ["", "a-plain-client", "wf:me:no-run"])
def test_what_is_for_no_run_is_not_kept(inbox: str) -> None:
    outbox = Outbox("", lambda inbox, ids, there: None)
    outbox.put(inbox, ["x"])
    assert outbox.is_empty


def test_a_client_gets_what_is_newer_also_after_a_new_run() -> None:
    notifications = KeptNotifications()
    for number in range(1, 4):
        notifications.put("a", number, [number])
    notifications.put("b", 4, ["b"])
    for found in (notifications, KeptNotifications(json.loads(json.dumps(notifications.dump())))):
        assert found.latest("a") == 3
        assert found.since("a", 0) == [[1], [2], [3]]
        assert found.since("a", 2) == [[3]]
        assert found.since("a", 3) == []
        assert found.latest("nobody") == 0
    notifications.forget("a")
    assert notifications.since("a", 0) == []


def test_only_the_last_are_kept() -> None:
    notifications = KeptNotifications()
    for number in range(1, 1 + 2 * KeptNotifications.KEPT):
        notifications.put("a", number, [number])
    assert len(notifications.since("a", 0)) == KeptNotifications.KEPT
    for number in range(KeptNotifications.INBOXES):
        notifications.put(f"b{number}", number, [number])
    assert notifications.since("a", 0) == []
    assert notifications.since("b0", -1) == [[0]]
