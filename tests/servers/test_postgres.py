"""A test's own PostgreSQL does what the tests of faults rely on."""

from pathlib import Path

import psycopg
import pytest

from tests.servers.binaries import MissingServer, postgres_versions
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerFailed

pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python


@pytest.mark.parametrize("version", postgres_versions())
def test_every_version_recovers_from_a_kill(tmp_path: Path, version: str) -> None:
    with PostgresServer(tmp_path, version=version) as server:
        url, port, pid = server.new_database(), server.port, server.pid
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
            assert connection.info.server_version // 10_000 == int(version)
        session = psycopg.connect(url)
        server.kill()
        assert not server.running
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
        session.close()
        server.start()
        assert server.port == port
        assert server.pid != pid
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_it_serves_after_a_restart(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        url = server.new_database()
        server.restart()
        psycopg.connect(url).close()


def test_a_paused_one_keeps_silent_until_it_resumes(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server, server.connect() as connection:
        server.pause()
        connection.pgconn.send_query(b"SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            server.connect(connect_timeout=2)
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()
        server.resume()
        while connection.pgconn.get_result() is not None:
            pass
        server.pause()  # and is ended all the same
    assert not server.running


def test_options_are_settings(tmp_path: Path) -> None:
    with PostgresServer(tmp_path, options={"TimeZone": "Asia/Tokyo"}) as server:
        with server.connect() as connection:
            assert connection.execute("SHOW TimeZone").fetchone() == ("Asia/Tokyo",)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_one_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no_such_setting"):
        PostgresServer(tmp_path, options={"no_such_setting": "1"}).start()


def test_a_version_that_is_not_here_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingServer, match="PostgreSQL 99"):
        PostgresServer(tmp_path, version="99")


def test_sessions_share_a_connection_behind_pgbouncer(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    with PgBouncer(tmp_path, postgres_server, pool_size=1) as bouncer:
        url = bouncer.url_of(postgres_url)
        with (
            psycopg.connect(url, autocommit=True, prepare_threshold=None) as one,
            psycopg.connect(url, autocommit=True, prepare_threshold=None) as other,
        ):
            backends = [c.execute("SELECT pg_backend_pid()").fetchone() for c in (one, other)]
        assert backends[0] == backends[1]
