"""The guard in SQL: nobody writes with a token that is lower than one seen before."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.stores.postgres.database import Database, database


@pytest.fixture
def subject(postgres_url: str) -> Iterator[Database]:
    with database(postgres_url) as found:
        found.execute("CREATE TABLE account (balance integer)")
        yield found


@pytest.fixture
def another(postgres_url: str, subject: Database) -> Iterator[Database]:
    found = Database(postgres_url)
    yield found
    found.close()


def guard(database: Database, token: int, key: str | bytes = "order:42", slot: int = 0) -> None:
    database.execute("SELECT dibs.guard(%s, %s, %s)", [key, token, slot])


def test_tokens_may_rise_and_repeat_but_not_fall(subject: Database) -> None:
    for token in (5, 5, 9, 1_700_000_000_000_000, 1_700_000_000_000_000):
        guard(subject, token)
    with pytest.raises(psycopg.Error, match="order:42 is no longer yours") as raised:
        guard(subject, 9)
    assert raised.value.sqlstate == "ZDF01"


def test_keys_and_slots_are_apart(subject: Database) -> None:
    guard(subject, 9)
    guard(subject, 1, slot=1)
    guard(subject, 1, "order:43")
    with pytest.raises(psycopg.Error):
        guard(subject, 8)


def test_a_write_with_an_old_token_is_undone(subject: Database) -> None:
    guard(subject, 9)
    with pytest.raises(psycopg.Error), subject.connection.transaction():
        guard(subject, 8)
        subject.execute("INSERT INTO account VALUES (1)")
    assert subject.execute("SELECT * FROM account") == []


def test_a_token_that_was_rolled_back_was_not_seen(subject: Database) -> None:
    with pytest.raises(ZeroDivisionError), subject.connection.transaction():
        guard(subject, 9)
        _ = 1 / 0
    guard(subject, 8)


@pytest.mark.parametrize("second", [8, 9])
def test_others_wait_until_the_guarded_transaction_ends(
    subject: Database, another: Database, second: int
) -> None:
    """Also with the same token: a newer one could else write first, and be overwritten."""
    guard(subject, 8)
    another.execute("SET lock_timeout = '50ms'")
    with subject.connection.transaction():
        guard(subject, 8)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            guard(another, second)
    guard(another, second)


def test_a_role_needs_no_more_than_the_page_says(subject: Database, postgres_url: str) -> None:
    subject.execute("DROP ROLE IF EXISTS guarded")
    subject.execute("CREATE ROLE guarded")
    subject.execute("GRANT USAGE ON SCHEMA dibs TO guarded")
    subject.execute("GRANT SELECT, INSERT, UPDATE ON dibs.fences TO guarded")
    try:
        subject.execute("SET ROLE guarded")
        guard(subject, 9)
        guard(subject, 10)
    finally:
        subject.execute("RESET ROLE")
        subject.execute("DROP OWNED BY guarded")
        subject.execute("DROP ROLE guarded")
