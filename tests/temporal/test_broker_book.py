"""A broker without a server: it answers as the ledger, also after a snapshot, and sends in order."""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from temporalio import workflow

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import encode
from dibs.core.names import fingerprint
from dibs.core.timing import MAX_CLAIM_TIMEOUT
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Notification,
    Queued,
    Refused,
    Release,
    Renew,
    Reply,
)
from dibs.stores.temporal.wire import (
    AGES,
    TEXTS,
    BrokerAnswer,
    BrokerCall,
    News,
    read_call,
    unpack_command,
)
from dibs.temporal.broker import outbox as broker_outbox
from dibs.temporal.broker.book import QUEUE_LIMIT, ROOM, BrokerBook, in_brief
from dibs.temporal.broker.outbox import A_SIGNAL, AT_A_TIME, KeptNotifications, Outbox
from dibs.temporal.broker.owners import inbox_of, owner_of
from tests.stores.redis.ledger_commands import PLANS
from tests.stores.redis.ledger_scripted import STAMP

KEY = b"lock:a"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"
RUN_2 = "11a201dc-139d-7c25-967c-4abd85365a06"
NOW = 1_000.0
ONE = inbox_of("a:workflow:with:colons", RUN)
OTHER = inbox_of("another", RUN_2)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def restarted(book: BrokerBook) -> BrokerBook:
    """As a broker's next run begins."""
    return BrokerBook(KEY, through_json(book.dump()))


def steps(plan: Sequence[Any]) -> list[tuple[list[Command], float, int]]:
    """A plan's batches, all about one key, with the time of each."""
    now, stamp = NOW, STAMP
    found = []
    for step in plan:
        if isinstance(step, float):
            now, stamp = now + step, stamp + int(step * 1e6)
        elif isinstance(step, int):
            stamp += step
        else:
            found.append(([replace(command, key=KEY) for command in step], now, stamp))
    return found


def with_sorted_holders(reply: Reply) -> Reply:
    """Leases that end at the same time come in any order."""
    if isinstance(reply, Refused):
        return replace(reply, holders=tuple(sorted(reply.holders, key=lambda each: each.token)))
    return reply


@given(plan=PLANS)
@settings(max_examples=60, deadline=None)
def test_it_answers_as_the_ledger(plan: list[Any]) -> None:
    broker, book = BrokerBook(KEY), MemoryBook(0, QUEUE_LIMIT)
    for commands, now, stamp in steps(plan):
        for command in commands:
            try:
                carried = unpack_command(through_json(encode(command)), KEY)
            except ValueError:
                assert isinstance(ledger.apply(book, command, now, stamp)[0], Failed)
            else:
                wanted = ledger.apply(book, carried, now, stamp)
                assert broker.apply(carried, now, stamp) == wanted


@given(plan=PLANS)
@settings(max_examples=60, deadline=None)
def test_a_snapshot_changes_nothing(plan: list[Any]) -> None:
    kept, carried = BrokerBook(KEY), BrokerBook(KEY)
    for commands, now, stamp in steps(plan):
        carried = restarted(carried)
        for command in commands:
            wanted, notifications = kept.apply(command, now, stamp)
            found, also = carried.apply(command, now, stamp)
            assert with_sorted_holders(found) == with_sorted_holders(wanted)
            assert also == notifications
        assert carried.next_change(now) == kept.next_change(now)
        assert restarted(carried).dump() == carried.dump()


# -- waiters, of which workflows send no heartbeats ------------------------------------------------


def wants(entry_id: str, inbox: str, waiter_ttl: float = AGES) -> Acquire:
    return Acquire(KEY, entry_id, "w", 60.0, queue=True, waiter_ttl=waiter_ttl, inbox=inbox)


def queued(*inboxes: str) -> BrokerBook:
    """Somebody holds, and these wait: `w0`, `w1`, …"""
    book = BrokerBook(KEY)
    book.apply(Acquire(KEY, "holder", "h", 30.0), NOW, STAMP)
    for number, inbox in enumerate(inboxes):
        assert isinstance(book.apply(wants(f"w{number}", inbox), NOW, STAMP)[0], Queued)
    return book


def granted(notifications: Sequence[Notification]) -> list[str]:
    return [notification.inbox for notification in notifications if notification.event == "granted"]


def release(book: BrokerBook, entry_id: str = "holder", at: float = NOW) -> list[Notification]:
    return book.apply(Release(KEY, entry_id), at, STAMP)[1]


def claimed() -> BrokerBook:
    """A workflow was granted, reached, and has what it asked for."""
    book = queued(ONE)
    notifications = release(book)
    assert book.ids_granted(notifications) == {ONE: ["w0"]}
    [notification] = book.claimed(["w0"], notifications, NOW, STAMP)
    assert (notification.event, notification.claim_timeout) == ("granted", 60.0)
    return book


def test_a_workflow_waits_without_heartbeats_and_a_plain_client_is_passed_over() -> None:
    assert granted(release(queued(ONE, ""), at=NOW + 29.0)) == [ONE]
    assert granted(release(queued("inbox", ONE), at=NOW + MAX_CLAIM_TIMEOUT + 1)) == [ONE]
    book = queued("")
    book.apply(wants("short", ONE, 20.0), NOW, STAMP)
    assert book.status(NOW + 19.0, STAMP).waiting == 2
    assert book.status(NOW + 21.0, STAMP).waiting == 1


def test_a_workflow_that_was_reached_holds_for_as_long_as_it_asked_for() -> None:
    (holder,) = restarted(claimed()).status(NOW + 1, STAMP).holders
    assert (holder.state, holder.expires_in) == ("held", 59.0)


def test_a_workflow_that_has_gone_leaves_the_queue_and_the_next_is_granted() -> None:
    book = queued(ONE, ONE, OTHER)
    first = book.ids_granted(release(book))[ONE]
    assert granted(book.gone({ONE: first}, NOW, STAMP))[-1] == OTHER
    assert not book.status(NOW, STAMP).waiting


def test_a_later_failure_to_reach_a_workflow_takes_only_what_it_did_not_get() -> None:
    book = claimed()
    book.gone({ONE: []}, NOW, STAMP)
    assert len(book.status(NOW, STAMP).holders) == 1
    book.apply(Renew(KEY, "w0", 60.0, OTHER), NOW, STAMP)  # from another run
    book.gone({ONE: ["w0"]}, NOW, STAMP)
    assert len(book.status(NOW, STAMP).holders) == 1
    book.gone({OTHER: ["w0"]}, NOW, STAMP)
    assert not book.status(NOW, STAMP).holders


def test_the_run_at_the_head_is_watched() -> None:
    assert BrokerBook(KEY).head_owner() is None
    book = queued("inbox", ONE)
    assert book.head_owner() is None
    release(book, "w0")
    assert book.head_owner() == owner_of(ONE)
    book.gone({ONE: []}, NOW, STAMP)
    assert not book.book.waiting


def test_a_closed_run_that_asked_for_it_ends_its_lease() -> None:
    book = BrokerBook(KEY)
    command = Acquire(KEY, "a", "h", 600.0)
    book.apply(command, NOW, STAMP)
    book.mark_fast(command, ("another", RUN_2))
    book = restarted(book)
    book.apply(wants("w", ONE), NOW, STAMP)
    assert book.fast_owners() == [("another", RUN_2)]
    assert granted(book.closed([("another", RUN_2)], NOW, STAMP)) == [ONE]
    assert not book.fast_owners()


def test_time_alone_changes_something_only_for_those_who_wait() -> None:
    assert queued().next_change(NOW) is None
    book = queued(ONE)
    assert book.next_change(NOW) == NOW + 30.0
    assert granted(book.settle(NOW + 30.0, STAMP)) == [ONE]
    book = queued("inbox", ONE)
    assert book.next_change(NOW) == NOW + MAX_CLAIM_TIMEOUT
    assert book.next_change(NOW + MAX_CLAIM_TIMEOUT + 1) == NOW + 30.0


def test_a_query_changes_nothing_and_names_no_id() -> None:
    book = queued(ONE)
    before = book.dump()
    assert '"holder"' not in json.dumps(encode(book.status(NOW, STAMP)))
    assert not book.status(NOW + 31.0, STAMP).waiting
    assert book.dump() == before


def test_plain_clients_in_front_are_the_first_waiters_and_then_the_holders() -> None:
    assert BrokerBook(KEY).front(3) == set()
    book = BrokerBook(KEY)
    book.apply(Acquire(KEY, "holder", "h", 30.0, inbox="holds"), NOW, STAMP)
    assert book.front(3) == {"holds"}
    for number, inbox in enumerate(("one", ONE, "one", "two")):
        book.apply(wants(f"w{number}", inbox), NOW, STAMP)
    assert [book.front(many) for many in (3, 2, 1)] == [
        {"one", "two", "holds"}, {"one", "two"}, {"one"},
    ]  # fmt: skip
    for entry_id in ("w0", "w2"):
        release(book, entry_id)
    assert book.front(1) == {"two"}


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": "30"}, {"ttl": 10**400}, {"id": 5}, {"note": None}, {"queue": 1}, {"capacity": True},
        {"id": "\ud800"}, {"units": "1"}, {"note": "x" * TEXTS},
    ],
)  # fmt: skip
def test_a_command_of_wrong_types_or_long_texts_is_refused(wrong: dict[str, Any]) -> None:
    command = replace(Acquire(KEY, "a", "h", 30.0), **wrong)
    with pytest.raises(ValueError, match=rf"no |neither|Unicode|{TEXTS} bytes"):
        unpack_command(through_json(encode(command)), KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {}, [], None, {"commands": None}, {"commands": [], "number": "1"},
        {"commands": [], "fast": 1}, {"commands": [], "run_id": None},
    ],
)  # fmt: skip
def test_a_call_of_wrong_types_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="call"):
        read_call(wrong)


def test_a_call_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    packed = {"commands": [], "number": 3, "colour": "blue", "format": 9}
    assert read_call(packed) == BrokerCall([], 3, format=9)


@pytest.mark.parametrize(
    "inbox",
    [
        "Zm9v", "", "wf:", "wf:x", "wf:x:y", f"wf::{RUN}", f"wf:\ud800:{RUN}", f"wf:{'x' * 999}:{RUN}",
    ],
)  # fmt: skip
def test_an_inbox_of_a_workflow_names_its_run(inbox: str) -> None:
    assert owner_of(ONE) == ("a:workflow:with:colons", RUN)
    assert owner_of(inbox) is None, "it can't be signalled"


@pytest.mark.parametrize("note", ["n" * 60, "\u20ac" * 300])
def test_a_long_queue_fits_into_one_message(note: str) -> None:
    book = BrokerBook(KEY)
    owner = "a-host-with-a-long-name.example/12345/" + "label" * 10

    def ask(number: int) -> Reply:
        wanted = Acquire(KEY, f"{number:022}", owner, 30.0, queue=True, note=note, inbox=ONE)
        return book.apply(wanted, NOW, STAMP)[0]

    replies = [ask(number) for number in range(QUEUE_LIMIT + 2)]
    assert isinstance(replies[-1], Refused)
    assert replies[-1].reason == "queue_full"
    assert ROOM / 2 < len(json.dumps(book.dump())) < ROOM
    book = restarted(book)
    for number in range(1, 100):  # who leaves makes room
        release(book, f"{number:022}")
    assert isinstance(ask(QUEUE_LIMIT + 2), Queued)
    assert isinstance(ask(0), Granted)


def test_many_that_come_and_go_take_no_room() -> None:
    book = BrokerBook(KEY)
    for number in range(3 * QUEUE_LIMIT):
        ask = Acquire(KEY, f"{number:022}", "o", 30.0)
        assert isinstance(book.apply(ask, NOW, STAMP)[0], Granted)
        book.apply(Release(KEY, f"{number:022}"), NOW, STAMP)
        book.apply(Release(KEY, f"t{number}", tombstone=0.001), NOW + number, STAMP)


@pytest.mark.parametrize("left", ["200 holders", "1,000 tombstones"])
def test_all_are_granted_though_much_ends_at_once(left: str) -> None:
    """As alarms ring, until nothing more is to be done at once."""
    book, many = BrokerBook(KEY), 200
    inboxes = [inbox_of(f"w{n}", RUN) for n in range(many)]
    if left == "200 holders":
        for n in range(many):
            book.apply(Acquire(KEY, f"h{n}", "h", 60.0, 1, many), NOW, STAMP)
    else:
        book.apply(Acquire(KEY, "h0", "h", 60.0, many, many), NOW, STAMP)
        for n in range(1_000):
            book.apply(Release(KEY, f"t{n}", tombstone=60.0), NOW, STAMP)
    for each in inboxes:
        ask = Acquire(KEY, each, "w", 60.0, 1, many, queue=True, waiter_ttl=AGES, inbox=each)
        book.apply(ask, NOW, STAMP)
    later = NOW + 61.0
    found = granted(book.settle(later, STAMP))
    while book.next_change(later) == later:
        found += granted(book.settle(later, STAMP))
    assert found == inboxes


def test_a_workflow_that_gives_up_gets_a_brief_status() -> None:
    book = BrokerBook(KEY)
    for n in range(20):
        ask = Acquire(KEY, f"h{n}", "me", 99.0 - n, capacity=20, note="n" * 1_000)
        book.apply(ask, NOW, STAMP)
    for n in range(9):
        ask = Acquire(KEY, f"w{n}", "me", 30.0, capacity=20, queue=True, note="n" * 1_000)
        book.apply(ask, NOW, STAMP)
    status = in_brief(book.status(NOW, STAMP), {fingerprint("w5")})
    assert len(json.dumps(encode(status))) < 12_000
    assert len(status.holders) == 9  # the last is the one that ends first
    assert min(each.expires_in for each in status.holders) == 80.0
    assert [each.lease for each in status.waiters].index(fingerprint("w5")) == 5
    assert status.waiting == 9
    assert in_brief(status, {"y"}).waiters == ()


# -- what it sends ---------------------------------------------------------------------------------

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


def make_outbox(ids_sent: list[str], state: Any = None) -> Outbox:
    return Outbox("", lambda inbox, ids, there: ids_sent.extend(ids), state)


async def all_sent(outbox: Outbox) -> None:
    while not outbox.is_empty:
        outbox.send()
        await asyncio.sleep(0)


async def test_much_goes_in_several_signals_and_in_order(addressee: Addressee) -> None:
    sent: list[str] = []
    outbox = make_outbox(sent)
    for number in range(500):
        outbox.put(ONE, BrokerAnswer([[LONG]], number), [f"a{number}"])
        outbox.put(ONE, [number, LONG])
    addressee.open.set()
    await all_sent(outbox)
    assert max(len(json.dumps(asdict(each))) for each in addressee.news) < A_SIGNAL + 2_500
    assert [each.number for news in addressee.news for each in news.answers] == [*range(500)]
    assert [each[0] for news in addressee.news for each in news.notifications] == [*range(500)]
    assert sent == [f"a{number}" for number in range(500)]


async def test_one_message_goes_however_large_it_is(addressee: Addressee) -> None:
    outbox = make_outbox([])
    outbox.put(ONE, [LONG * 100])
    outbox.put(ONE, [LONG])
    addressee.open.set()
    await all_sent(outbox)
    assert [len(each.notifications) for each in addressee.news] == [1, 1]


async def test_a_bounded_number_of_signals_is_under_way(addressee: Addressee) -> None:
    outbox = make_outbox([])
    for number in range(2 * AT_A_TIME):
        outbox.put(inbox_of(f"w{number}", RUN), BrokerAnswer([[LONG]]))
    outbox.send()
    await asyncio.sleep(0)
    assert len(addressee.news) == AT_A_TIME
    addressee.open.set()
    await all_sent(outbox)
    assert len(addressee.news) == 2 * AT_A_TIME


async def test_what_was_not_sent_is_sent_by_the_next_run(addressee: Addressee) -> None:
    sent: list[str] = []
    before = make_outbox([])
    for inbox in ("", "a-plain-client", "wf:me:no-run"):
        before.put(inbox, ["x"])
    assert before.is_empty, "these are no runs"
    before.put(ONE, BrokerAnswer([["x"]], 7), ["a"])
    before.put(ONE, ["y"])
    addressee.open.set()
    await all_sent(make_outbox(sent, through_json(before.dump())))
    assert addressee.news == [News("", [["y"]], [BrokerAnswer([["x"]], 7)])]
    assert sent == ["a"]


def test_a_client_gets_newer_notifications_also_after_a_new_run() -> None:
    kept = KeptNotifications()
    for number in range(1, 4):
        kept.put("a", number, [number])
    kept.put("b", 4, ["b"])
    for found in (kept, KeptNotifications(through_json(kept.dump()))):
        assert (found.latest("a"), found.latest("nobody")) == (3, 0)
        assert [found.since("a", after) for after in (0, 2, 3)] == [[[1], [2], [3]], [[3]], []]
    kept.forget("a")
    assert kept.since("a", 0) == []


def test_only_the_last_notifications_of_the_last_clients_are_kept() -> None:
    kept = KeptNotifications()
    for number in range(1, 1 + 2 * KeptNotifications.KEPT):
        kept.put("a", number, [number])
    assert len(kept.since("a", 0)) == KeptNotifications.KEPT
    for number in range(KeptNotifications.INBOXES):
        kept.put(f"b{number}", number, [number])
    assert kept.since("a", 0) == []
    assert kept.since("b0", -1) == [[0]]
