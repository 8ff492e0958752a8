"""A batch costs nobody else a lease by an error or a corrupt row; and who is told of what it did."""

from collections.abc import Iterator

import psycopg
import pytest

from dibs.backends.postgres import migrations, script
from dibs.core.names import fingerprint
from dibs.model import (
    MAX_SLOTS,
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Inspect,
    Lost,
    Release,
    Released,
    Renew,
    Renewed,
    Revoke,
    Status,
    Unknown,
)
from tests.backends.postgres.ledger_commands import OWN
from tests.backends.postgres.ledger_subject import Database, Time, database, take

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python


@pytest.fixture
def subject(postgres_url: str) -> Iterator[Database]:
    with database(postgres_url) as found:
        yield found


@pytest.fixture
def another(postgres_url: str, subject: Database) -> Iterator[Database]:
    found = Database(postgres_url)
    yield found
    found.close()


@pytest.mark.parametrize(
    "bad",
    [
        take(b"bad", "\ud800"),
        take(b"bad", note="\ud800"),
        take(b"bad", note=b"bytes"),
        take(b"bad", units=2.0, capacity=2),
        take(b"bad", priority=None),
        take(b"bad", tokens=2**64),
        take(b"bad", tokens=2**63 - 1),
        take(b"bad", capacity=float("inf")),
        Renew(b"bad", "id", float("nan")),
        Release(b"bad", "\ud800"),
    ],
    ids=repr,
)
def test_a_command_that_no_row_can_hold_fails_alone(subject: Database, bad: Command) -> None:
    replies, _ = subject.apply([take(b"a"), bad, take(b"z"), Release(b"a", "id")])
    first, failed, last, released = replies
    assert isinstance(first, Granted)
    assert isinstance(failed, Failed)
    assert failed.reason == "invalid"
    assert isinstance(last, Granted)
    assert released == Released()
    [status], _ = subject.apply([Inspect(b"bad")])
    assert isinstance(status, Status)
    assert not status.holders


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE dibs.keys SET waiting = 3 WHERE key = 'bad'",
        "UPDATE dibs.keys SET used = 1 WHERE key = 'bad'",
        "UPDATE dibs.keys SET used = 1, waiting = 1 WHERE key = 'bad'",
        "UPDATE dibs.keys SET last = 9223372036854775807 WHERE key = 'bad'",
    ],
)
def test_a_corrupt_row_fails_its_key_alone(subject: Database, damage: str) -> None:
    subject.apply([take(b"bad", "first"), Release(b"bad", "first")])
    subject.execute(damage)
    replies, _ = subject.apply([take(b"a"), take(b"bad"), take(b"z"), take(b"bad", "other")])
    assert [type(reply) for reply in replies] == [Granted, Failed, Granted, Failed]
    subject.execute("UPDATE dibs.keys SET used = 0, waiting = 0, last = 5 WHERE key = 'bad'")
    [reply], _ = subject.apply([take(b"bad")])
    assert isinstance(reply, Granted)


@pytest.mark.parametrize("damage", ["state = 'nonsense'", "owner = NULL", "used = -1", "id = NULL"])
def test_a_hold_that_makes_no_sense_fails_its_key_alone(subject: Database, damage: str) -> None:
    subject.apply([take(b"bad")])
    subject.execute(f"UPDATE dibs.keys SET {damage}")
    for batch in ([take(b"bad", "other")], [take(b"bad", "other"), take(b"a")]):
        replies, _ = subject.apply(batch)
        assert isinstance(replies[0], Failed)
        assert replies[0].reason == "corrupt"
        assert all(isinstance(reply, Granted) for reply in replies[1:])


def test_commands_of_one_key_are_done_in_their_order(subject: Database) -> None:
    batch: list[Command] = []
    for n in range(5):
        batch += [take(b"a", f"id{n}"), take(b"b"), Renew(b"a", f"id{n}", 60.0)]
        batch += [Release(b"a", f"id{n}")]
    replies, _ = subject.apply(batch)
    mine = [reply for reply, command in zip(replies, batch, strict=True) if command.key == b"a"]
    assert [type(reply) for reply in mine] == [Granted, Renewed, Released] * 5
    tokens = [reply.token for reply in mine if isinstance(reply, Granted)]
    assert tokens == sorted(set(tokens))


def test_no_commands_have_no_replies(subject: Database) -> None:
    assert subject.apply([]) == ([], [])


def test_another_format_is_refused(subject: Database) -> None:
    newer = script.statement().replace(f"({migrations.FORMAT},", f"({migrations.FORMAT + 1},")
    with pytest.raises(psycopg.Error) as raised:
        subject.apply([take(b"a")], statement=newer)
    assert raised.value.sqlstate == "ZDV01"


@pytest.mark.parametrize(
    "odd",
    [
        'a"b\\c\n\t\x01\x7f€🔒{}[],%s',
        "\0",
        "\x10",
        "\x10\0",
        "\\u0000",
        "\x100\x101\0\x10",
        "\x100",
    ],
)
def test_a_text_of_any_kind_comes_back_as_it_was(subject: Database, odd: str) -> None:
    key = b"\x00\xff'\\"
    told = Acquire(key, odd, odd, 30.0, note=odd)
    replies, _ = subject.apply([told, Inspect(key), Revoke(key, None, odd), Renew(key, odd, 5.0)])
    granted, status, _, lost = replies
    assert isinstance(granted, Granted)
    assert isinstance(status, Status)
    assert (status.holders[0].owner, status.holders[0].note) == (odd, odd)
    assert status.holders[0].lease == fingerprint(odd)
    assert lost == Lost("revoked", odd)
    [released, again], _ = subject.apply([Release(key, odd), Release(key, odd)])
    assert (released, again) == (Released(), Unknown())


# ---- pushes -------------------------------------------------------------------------------------------


def test_a_push_that_is_too_long_has_its_waiter_ask(subject: Database) -> None:
    clock = Time()
    key = b"x" * 2000
    many = MAX_SLOTS
    subject.apply([take(key, "all", units=many, capacity=many)], clock)
    asks = take(key, "next", units=many, capacity=many, queue=True, inbox="here")
    subject.apply([asks], clock)
    _, [wakeup] = subject.apply([Release(key, "all")], clock)
    assert (wakeup.event, wakeup.token, wakeup.slots) == ("granted", 0, ())
    [reply], _ = subject.apply([Renew(key, "next", 30.0)], clock)
    assert isinstance(reply, Granted)
    assert len(reply.slots) == many


def test_nobody_is_notified_where_nobody_else_waits(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a", inbox="here"), take(b"a", "w", queue=True, inbox=OWN)], clock)
    _, wakeups = subject.apply([Release(b"a", "id")], clock)
    assert [wakeup.inbox for wakeup in wakeups] == [OWN], "its own is returned, nothing is sent"


def test_an_inbox_that_is_no_channel_costs_only_its_push(subject: Database) -> None:
    clock = Time()
    subject.apply([take(b"a"), take(b"a", "w", queue=True, inbox="x" * 64)], clock)
    [released], wakeups = subject.apply([Release(b"a", "id")], clock)
    assert released == Released()
    assert wakeups == []


@pytest.mark.parametrize(
    "payload", ["", "{}", "[]", "nonsense", '["zz",1,2,3,4,5,6,7]', "[" * 5000]
)
def test_what_others_send_is_no_push(payload: str) -> None:
    assert script.read_push(payload, "here") is None


def test_a_buried_id_is_gone_for_every_manner_of_asking(subject: Database) -> None:
    clock = Time()
    subject.apply([Release(b"a", "late", bury=60.0)], clock)
    replies, _ = subject.apply([take(b"a", "late"), take(b"a", "late", queue=True)], clock)
    assert replies == [Gone(), Gone()]
