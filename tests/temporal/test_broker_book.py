"""What a broker does with a command, without a server: as the ledger, and the same after a snapshot."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

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
from dibs.stores.temporal.wire import AGES, TEXTS, unpack_command
from dibs.temporal.broker.book import QUEUE_LIMIT, ROOM, BrokerBook, in_brief
from dibs.temporal.broker.owners import inbox_of, owner_of
from tests.stores.redis.ledger_commands import PLANS
from tests.stores.redis.ledger_scripted import STAMP

KEY = b"lock:a"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"
RUN_2 = "11a201dc-139d-7c25-967c-4abd85365a06"
NOW = 1_000.0
THERE = inbox_of("a:workflow:with:colons", RUN)
HERE = inbox_of("another", RUN_2)


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


def through_json(command: Command) -> Command:
    return unpack_command(json.loads(json.dumps(encode(command))), KEY)


def anew(book: BrokerBook) -> BrokerBook:
    """As a broker's next run begins."""
    return BrokerBook(KEY, json.loads(json.dumps(book.dump())))


def sorted_holders(reply: Reply) -> Reply:
    """What ends at once ends in any order."""
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
                carried = through_json(command)
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
        carried = anew(carried)
        for command in commands:
            wanted, told = kept.apply(command, now, stamp)
            found, told_too = carried.apply(command, now, stamp)
            assert sorted_holders(found) == sorted_holders(wanted)
            assert told_too == told
        assert carried.next_change(now) == kept.next_change(now)
        assert anew(carried).dump() == carried.dump()


def queue(book: BrokerBook, *inboxes: str, now: float = NOW) -> list[Reply]:
    """Somebody holds, and these wait: `w0`, `w1`, …"""
    book.apply(Acquire(KEY, "holder", "h", 30.0), now, STAMP)
    return [book.apply(waits(f"w{n}", inbox), now, STAMP)[0] for n, inbox in enumerate(inboxes)]


def waits(entry_id: str, inbox: str, waiter_ttl: float = AGES) -> Acquire:
    """As somebody asks who has such waiter_ttl."""
    return Acquire(KEY, entry_id, "w", 60.0, queue=True, waiter_ttl=waiter_ttl, inbox=inbox)


def granted(notifications: Sequence[Notification]) -> list[str]:
    return [notification.inbox for notification in notifications if notification.event == "granted"]


def test_a_workflow_that_waits_is_believed_in_without_signs_of_life() -> None:
    book = BrokerBook(KEY)
    assert all(isinstance(reply, Queued) for reply in queue(book, THERE, ""))
    later = NOW + 29.0
    _, told = book.apply(Release(KEY, "holder"), later, STAMP)
    assert granted(told) == [THERE]


def test_a_plain_client_that_is_silent_is_passed_over() -> None:
    book = BrokerBook(KEY)
    queue(book, "inbox", THERE)
    _, told = book.apply(Release(KEY, "holder"), NOW + MAX_CLAIM_TIMEOUT + 1, STAMP)
    assert granted(told) == [THERE]


def test_what_is_pushed_to_a_workflow_is_claimed_for_as_long_as_was_asked_for() -> None:
    book = BrokerBook(KEY)
    queue(book, THERE)
    _, told = book.apply(Release(KEY, "holder"), NOW, STAMP)
    assert book.ids_granted(told) == {THERE: ["w0"]}
    [notification] = book.claimed(["w0"], told, NOW, STAMP)
    assert (notification.event, notification.claim_timeout) == ("granted", 60.0)
    (holder,) = anew(book).status(NOW + 1, STAMP).holders
    assert (holder.state, holder.expires_in) == ("held", 59.0)


def test_who_has_gone_leaves_the_queue_and_the_next_is_told() -> None:
    book = BrokerBook(KEY)
    queue(book, THERE, THERE, HERE)
    _, told = book.apply(Release(KEY, "holder"), NOW, STAMP)
    told = book.gone({THERE: book.ids_granted(told)[THERE]}, NOW, STAMP)
    assert granted(told)[-1] == HERE
    assert not book.status(NOW, STAMP).waiting


def test_what_was_delivered_once_is_not_taken_because_a_later_push_fails() -> None:
    book = BrokerBook(KEY)
    queue(book, THERE)
    _, told = book.apply(Release(KEY, "holder"), NOW, STAMP)
    book.claimed(book.ids_granted(told)[THERE], told, NOW, STAMP)
    book.gone({THERE: []}, NOW, STAMP)
    assert len(book.status(NOW, STAMP).holders) == 1


def test_what_was_renewed_from_elsewhere_is_not_taken_because_a_push_fails() -> None:
    book = BrokerBook(KEY)
    queue(book, THERE)
    _, told = book.apply(Release(KEY, "holder"), NOW, STAMP)
    book.claimed(book.ids_granted(told)[THERE], told, NOW, STAMP)
    book.apply(Renew(KEY, "w0", 60.0, HERE), NOW, STAMP)
    book.gone({THERE: ["w0"]}, NOW, STAMP)
    assert len(book.status(NOW, STAMP).holders) == 1
    book.gone({HERE: ["w0"]}, NOW, STAMP)
    assert not book.status(NOW, STAMP).holders


def test_a_workflow_waits_no_longer_than_it_says() -> None:
    book = BrokerBook(KEY)
    queue(book, "")
    book.apply(waits("short", THERE, 20.0), NOW, STAMP)
    assert book.status(NOW + 19.0, STAMP).waiting == 2
    assert book.status(NOW + 21.0, STAMP).waiting == 1


def test_the_first_in_line_is_looked_after_if_it_is_a_workflow() -> None:
    book = BrokerBook(KEY)
    assert book.head_owner() is None
    queue(book, "inbox", THERE)
    assert book.head_owner() is None
    book.apply(Release(KEY, "w0"), NOW, STAMP)
    assert book.head_owner() == owner_of(THERE)
    book.gone({THERE: []}, NOW, STAMP)
    assert not book.book.waiting


def test_a_closed_run_that_asked_for_it_ends_its_lease() -> None:
    book = BrokerBook(KEY)
    command = Acquire(KEY, "a", "h", 600.0)
    book.apply(command, NOW, STAMP)
    book.mark_fast(command, ("another", RUN_2))
    book = anew(book)
    queue(book, THERE)
    assert book.fast_owners() == [("another", RUN_2)]
    assert granted(book.closed([("another", RUN_2)], NOW, STAMP)) == [THERE]
    assert not book.fast_owners()


def test_time_alone_changes_something_only_for_those_who_wait() -> None:
    book = BrokerBook(KEY)
    book.apply(Acquire(KEY, "holder", "h", 30.0), NOW, STAMP)
    assert book.next_change(NOW) is None
    queue(book, THERE)
    assert book.next_change(NOW) == NOW + 30.0
    assert granted(book.settle(NOW + 30.0, STAMP)) == [THERE]


def test_it_looks_again_when_a_plain_client_at_the_head_falls_silent() -> None:
    book = BrokerBook(KEY)
    queue(book, "inbox", THERE)
    assert book.next_change(NOW) == NOW + MAX_CLAIM_TIMEOUT
    assert book.next_change(NOW + MAX_CLAIM_TIMEOUT + 1) == NOW + 30.0


def test_a_query_changes_nothing() -> None:
    book = BrokerBook(KEY)
    queue(book, THERE)
    before = book.dump()
    assert not book.status(NOW + 31.0, STAMP).waiting
    assert book.dump() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": "30"},
        {"ttl": 10**400},
        {"id": 5},
        {"note": None},
        {"queue": 1},
        {"capacity": True},
        {"id": "\ud800"},
        {"units": "1"},
    ],
)
def test_a_command_of_wrong_types_is_refused(wrong: dict[str, Any]) -> None:
    command = replace(Acquire(KEY, "a", "h", 30.0), **wrong)
    with pytest.raises(ValueError, match=r"no |neither|Unicode"):
        unpack_command(json.loads(json.dumps(encode(command))), KEY)


def test_an_inbox_of_a_workflow_names_its_run() -> None:
    assert owner_of(THERE) == ("a:workflow:with:colons", RUN)


@pytest.mark.parametrize(
    "inbox",
    [
        "Zm9v",
        "",
        "wf:",
        "wf:x",
        "wf:x:y",
        f"wf::{RUN}",
        f"wf:\ud800:{RUN}",
        f"wf:{'x' * 999}:{RUN}",
    ],
)
def test_what_can_not_be_signalled_is_no_workflow(inbox: str) -> None:
    assert owner_of(inbox) is None


def test_a_long_queue_fits_into_one_message() -> None:
    book = BrokerBook(KEY)
    owner = "a-host-with-a-long-name.example/12345/" + "label" * 10
    for number in range(QUEUE_LIMIT + 1):
        ask = Acquire(KEY, f"{number:022}", owner, 30.0, queue=True, note="n" * 60, inbox=THERE)
        book.apply(ask, NOW, STAMP)
    last = book.apply(Acquire(KEY, "late", owner, 30.0, queue=True), NOW, STAMP)[0]
    assert isinstance(last, Refused)
    assert last.reason == "queue_full"
    assert len(json.dumps(book.dump())) < 1_500_000
    assert isinstance(
        anew(book).apply(Acquire(KEY, f"{0:022}", owner, 30.0), NOW, STAMP)[0], Granted
    )


def test_long_notes_fit_into_one_message_too() -> None:
    book = BrokerBook(KEY)

    def ask(number: int) -> Reply:
        wanted = Acquire(KEY, f"{number:022}", "o", 30.0, queue=True, note="\u20ac" * 300)
        return book.apply(wanted, NOW, STAMP)[0]

    replies = [ask(number) for number in range(QUEUE_LIMIT)]
    assert isinstance(replies[-1], Refused)
    assert replies[-1].reason == "queue_full"
    assert ROOM / 2 < len(json.dumps(book.dump())) < ROOM
    for number in range(1, 100):  # who leaves makes room
        book.apply(Release(KEY, f"{number:022}"), NOW, STAMP)
    assert isinstance(ask(QUEUE_LIMIT), Queued)
    assert isinstance(ask(1), Queued)


def test_many_that_come_and_go_take_no_room() -> None:
    book = BrokerBook(KEY)
    for number in range(3 * QUEUE_LIMIT):
        ask = Acquire(KEY, f"{number:022}", "o", 30.0)
        assert isinstance(book.apply(ask, NOW, STAMP)[0], Granted)
        book.apply(Release(KEY, f"{number:022}"), NOW, STAMP)
        book.apply(Release(KEY, f"t{number}", tombstone=0.001), NOW + number, STAMP)


def test_a_command_with_long_texts_is_refused() -> None:
    command = Acquire(KEY, "a", "h", 30.0, note="x" * TEXTS)
    with pytest.raises(ValueError, match=f"{TEXTS} bytes"):
        unpack_command(json.loads(json.dumps(encode(command))), KEY)


def test_plain_clients_in_front_are_the_first_waiters_and_then_the_holders() -> None:
    book = BrokerBook(KEY)
    assert book.front(3) == set()
    book.apply(Acquire(KEY, "holder", "h", 30.0, inbox="holds"), NOW, STAMP)
    assert book.front(3) == {"holds"}
    for number, inbox in enumerate(("one", THERE, "one", "two")):
        book.apply(waits(f"w{number}", inbox), NOW, STAMP)
    assert book.front(3) == {"one", "two", "holds"}
    assert book.front(2) == {"one", "two"}
    assert book.front(1) == {"one"}
    book.apply(Release(KEY, "w0"), NOW, STAMP)
    book.apply(Release(KEY, "w2"), NOW, STAMP)
    assert book.front(1) == {"two"}


def granted_by_time(book: BrokerBook, later: float) -> list[str]:
    """The inboxes that are granted as alarms ring, until nothing more is to be done at once."""
    found = granted(book.settle(later, STAMP))
    while book.next_change(later) == later:
        found += granted(book.settle(later, STAMP))
    return found


INBOXES = [inbox_of(f"w{n}", RUN) for n in range(200)]


def test_all_are_granted_where_many_died_and_many_wait() -> None:
    book = BrokerBook(KEY)
    for n in range(200):
        book.apply(Acquire(KEY, f"h{n}", "h", 60.0, 1, 200), NOW, STAMP)
    for each in INBOXES:
        ask = Acquire(KEY, each, "w", 60.0, 1, 200, queue=True, waiter_ttl=AGES, inbox=each)
        book.apply(ask, NOW, STAMP)
    assert granted_by_time(book, NOW + 61.0) == INBOXES


def test_nobody_waits_for_many_ids_to_be_forgotten() -> None:
    book = BrokerBook(KEY)
    book.apply(Acquire(KEY, "h0", "h", 60.0), NOW, STAMP)
    for n in range(1_000):
        book.apply(Release(KEY, f"t{n}", tombstone=60.0), NOW, STAMP)
    book.apply(waits("w", THERE), NOW, STAMP)
    assert granted_by_time(book, NOW + 61.0) == [THERE]


def test_a_workflow_that_gives_up_is_told_what_it_needs_to_know() -> None:
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


def test_no_answer_names_an_id() -> None:
    book = BrokerBook(KEY)
    queue(book, THERE)
    status = book.status(NOW, STAMP)
    assert '"holder"' not in json.dumps(encode(status))
