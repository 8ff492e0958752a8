"""The SQL guard in transactions of SQLAlchemy: connections and sessions, for threads and asyncio."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dibs import DibsError, NotConfigured
from dibs.fencing import AsyncSqlFence, SqlFence, StaleToken
from tests.pages import blocks, run

KEY = "lock:order:42"


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path}/a.db"
    if request.param == "postgres":
        url = of_psycopg(request.getfixturevalue("postgres_url"))
    engine = create_engine(url)
    yield engine
    engine.dispose()


def of_psycopg(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


@pytest.mark.parametrize(
    "make", [Engine.connect, Session, lambda e: scoped_session(sessionmaker(e))]
)
def test_check_and_write_stand_or_fall_together(engine: Engine, make: Any) -> None:
    fence, user = SqlFence(), make(engine)
    with pytest.raises(NotConfigured, match=r"create\(connection\)"):
        fence.check((KEY, 10), user)
    user.rollback()
    fence.create(user)
    user.execute(text("CREATE TABLE orders (state TEXT)"))
    user.commit()
    fence.check((KEY, 10), user)
    user.execute(text("INSERT INTO orders VALUES ('lost')"))
    user.rollback()  # so that token was not seen
    fence.check((KEY, 9), user)
    user.execute(text("INSERT INTO orders VALUES ('kept')"))
    user.commit()
    with pytest.raises(StaleToken) as stale:
        fence.check((KEY, 8), user)
    assert stale.value.seen == 9
    assert user.execute(text("SELECT state FROM orders")).scalars().all() == ["kept"]
    user.close()


def test_a_connection_in_autocommit_is_refused(engine: Engine) -> None:
    fence = SqlFence()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        fence.create(connection)
        with pytest.raises(DibsError, match="in the transaction that writes"):
            fence.check((KEY, 10), connection)
        assert not connection.execute(text("SELECT * FROM dibs_fences")).all()


@pytest.mark.parametrize("make", [AsyncConnection, AsyncSession])
async def test_asyncio(make: Any, postgres_url: str) -> None:
    engine, fence = create_async_engine(of_psycopg(postgres_url)), AsyncSqlFence()
    async with engine.connect() if make is AsyncConnection else AsyncSession(engine) as user:
        await fence.create(user)
        await fence.check((KEY, 10), user)
        await user.commit()
        await fence.check((KEY, 11), user)
        await user.rollback()
        await fence.check((KEY, 10), user)
        with pytest.raises(StaleToken):
            await fence.check((KEY, 9), user)
    await engine.dispose()


def test_the_page_runs(tmp_path: Path) -> None:
    assert "is stale" in run(blocks("integrations/sqlalchemy.md")[0], tmp_path)
