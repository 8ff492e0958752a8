"""Connections to PostgreSQL: what a call costs, and what a break, a kill or an interrupt leaves behind."""

import asyncio
import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Status,
)
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.connection import Statement
from tests.connections import connection_to
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.connections_help import (
    KEY,
    Mode,
    Room,
    Traced,
    acquire,
    admin,
    both,
    ear_of,
    pid_of,
    say,
    stalled,
    terminate,
    wire_of,
)

# ---- round trips ----------------------------------------------------------------------------------


@both
def test_an_acquire_is_one_round_trip_and_so_is_a_release(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        with Traced(wire_of(backend)) as first:
            assert isinstance(await say(backend, acquire("a")), Granted)
        with Traced(wire_of(backend)) as last:
            assert await say(backend, Release(KEY, "a")) == Released()
        for seen in (first, last):
            assert (seen.sent("Sync"), seen.sent("Bind"), seen.sent("Parse")) == (1, 1, 0)

    Room(mode, postgres_url).run(body)


@both
def test_a_batch_is_one_round_trip(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        keys = [b"lock:%d" % number for number in range(512)]
        with Traced(wire_of(backend)) as seen:
            replies = await backend.apply([acquire("a", key) for key in keys])
        assert {type(reply) for reply in replies} == {Granted}
        assert seen.sent("Sync") == 1

    Room(mode, postgres_url).run(body)


@both
def test_a_batch_is_one_transaction(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        with admin(postgres_url) as connection:

            def committed() -> int:
                """By others than us: what a session did is counted once it is told to."""
                [(count,)] = connection.execute(
                    "SELECT count(DISTINCT xmin::text) FROM dibs.keys"
                ).fetchall()
                return int(count)

            await backend.apply([acquire("a", b"lock:%d" % number) for number in range(64)])
            assert committed() == 1

    Room(mode, postgres_url).run(body)


@both
def test_a_batch_larger_than_any_socket_buffer(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        commands: list[Command] = [
            acquire("a", b"lock:%d" % number, note="x" * 50_000) for number in range(200)
        ]
        assert {type(reply) for reply in await backend.apply(commands)} == {Granted}
        status = await backend.apply([Inspect(command.key) for command in commands])
        assert {len(each.holders[0].note) for each in status} == {50_000}

    Room(mode, postgres_url).run(body)


# ---- what breaks ----------------------------------------------------------------------------------


@both
def test_a_connection_that_ended_while_idle_is_made_anew(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        granted = await say(backend, acquire("a"))
        before = pid_of(backend)
        terminate(postgres_url, before)
        await asyncio.sleep(0.05) if mode == "async" else time.sleep(0.05)
        assert await say(backend, Release(KEY, "a")) == Released()
        assert pid_of(backend) != before
        again = await say(backend, acquire("b"))
        assert isinstance(granted, Granted)
        assert isinstance(again, Granted)
        assert again.token > granted.token

    Room(mode, postgres_url).run(body)


@both
def test_a_connection_that_ends_in_mid_call(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await say(backend, acquire("a"))
        pid = pid_of(backend)

        def end() -> None:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        ending = threading.Timer(0.2, end)
        ending.start()
        with pytest.raises(BackendUnavailable, match="broke") as failure:
            await say(backend, acquire("b"))
        ending.join()
        place = postgres_url.partition("@")[2]
        assert place in str(failure.value)
        status = await say(backend, Inspect(KEY))
        assert isinstance(status, Status)
        assert [holder.owner for holder in status.holders] == ["owner-a"]

    Room(mode, postgres_url).run(body)


def test_a_cancelled_call_leaves_no_answer_for_the_next(postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await say(backend, acquire("a"))
        before = pid_of(backend)
        with stalled(pid_of(backend)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await say(backend, Inspect(KEY))
        status = await say(backend, Inspect(b"lock:another"))
        assert isinstance(status, Status)
        assert status.key == b"lock:another"
        assert pid_of(backend) != before

    Room("async", postgres_url).run(body)


def test_a_thread_waits_no_longer_than_the_lease_allows(postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await say(backend, acquire("a"))
        with stalled(pid_of(backend)):
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match=r"did not answer within 0\.5 s"):
                backend.connection.apply([acquire("b")], 0.5)
            assert 0.4 < time.monotonic() - began < 2
        status = await say(backend, Inspect(b"lock:another"))
        assert isinstance(status, Status)
        assert status.key == b"lock:another"

    Room("blocking", postgres_url).run(body)


def test_an_interrupted_call_leaves_no_answer_for_the_next(postgres_url: str) -> None:
    """Ctrl-C, in a thread that waits for the server."""

    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await say(backend, acquire("a"))
        with stalled(pid_of(backend)):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                await say(backend, Inspect(KEY))
        status = await say(backend, Inspect(b"lock:another"))
        assert isinstance(status, Status)
        assert status.key == b"lock:another"

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        Room("blocking", postgres_url).run(body)
    finally:
        signal.signal(signal.SIGALRM, before)


@both
def test_a_server_that_stands_still_holds_up_nobody(mode: Mode, tmp_path: Path) -> None:
    """Half-open: the connection is up, and nothing comes back."""

    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises((BackendUnavailable, TimeoutError)):
                if mode == "async":
                    async with asyncio.timeout(0.3):  # as the batcher does
                        await say(backend, acquire("a"))
                else:
                    backend.connection.apply([acquire("a")], 0.3)
            assert time.monotonic() - began < 3
        finally:
            server.resume()
        assert isinstance(await say(backend, acquire("b", b"lock:b")), Granted)

    with PostgresServer(tmp_path / "server") as server:
        Room(mode, server.url).run(body)


@both
def test_a_push_is_missed_by_nobody_after_the_listener_broke(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        waiter, holder = await room.connect(), await room.connect()
        await say(holder, acquire("a"))
        queued = await say(waiter, acquire("b", queue=True, inbox=waiter.inbox))
        assert isinstance(queued, Queued)
        pid = ear_of(waiter, mode)
        threading.Timer(0.2, os.kill, (pid, signal.SIGTERM)).start()
        with pytest.raises(BackendUnavailable, match="pushes may have been missed"):
            while True:  # it returns with nothing first, where it notices the break
                await waiter.notifications(10)
        if mode == "blocking":  # the keeper makes another
            inbox = waiter.inbox
            await say(waiter, Inspect(KEY))
            assert waiter.inbox == inbox
            with pytest.raises(BackendUnavailable):
                await waiter.notifications(0)
        else:  # so does the runtime
            assert list(await waiter.notifications(0)) == []
        assert await say(holder, Release(KEY, "a")) == Released()
        pushes = await waiter.notifications(10)
        assert [(push.event, push.key) for push in pushes] == [("granted", KEY)]

    Room(mode, postgres_url).run(body)


@both
def test_kill_9_and_crash_recovery(mode: Mode, tmp_path: Path) -> None:
    """What was granted before is held after, and tokens go on rising."""

    async def body(room: Room) -> None:
        backend = await room.connect()
        granted = await say(backend, acquire("a"))
        assert isinstance(granted, Granted)
        server.kill()
        with pytest.raises(BackendUnavailable):
            await say(backend, acquire("b"))
        with pytest.raises(BackendUnavailable, match="can't be reached"):
            await say(backend, acquire("b"))
        server.start()
        refused = await say(backend, acquire("b"))
        assert isinstance(refused, Refused)
        assert [holder.token for holder in refused.holders] == [granted.token]
        assert await say(backend, Release(KEY, "a")) == Released()
        again = await say(backend, acquire("c"))
        assert isinstance(again, Granted)
        assert again.token > granted.token

    with PostgresServer(tmp_path / "server") as server:
        Room(mode, server.url).run(body)


@both
def test_a_failure_of_the_moment_is_tried_once_more(mode: Mode, postgres_url: str) -> None:
    """A deadlock's victim has done nothing; the second time all is well."""
    with admin(postgres_url) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute("""
            CREATE FUNCTION hapless(fails bigint) RETURNS bigint LANGUAGE plpgsql AS $$
            DECLARE try bigint := nextval('public.tries');
            BEGIN
                IF try <= fails THEN
                    RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
                END IF;
                RETURN try;
            END $$""")

    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        ask = Statement("hapless", "SELECT public.hapless(%s)")
        assert await backend._session.ask(ask, ["1"]) == [(2,)]
        with pytest.raises(BackendUnavailable, match="deadlock detected"):
            await backend._session.ask(ask, ["99"])
        assert isinstance(await say(backend, acquire("a")), Granted)

    Room(mode, postgres_url).run(body)


@both
def test_what_was_prepared_may_vanish(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        await wire_of(backend).run("DISCARD ALL", 5)
        assert isinstance(await say(backend, acquire("a")), Granted)

    Room(mode, postgres_url).run(body)


@both
def test_a_schema_that_vanished_is_made_anew(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(listen=False)
        with admin(postgres_url) as connection:
            connection.execute("DROP SCHEMA dibs CASCADE")
        assert isinstance(await say(backend, acquire("a")), Granted)

    Room(mode, postgres_url).run(body)


# ---- time zones, forks, leaving -------------------------------------------------------------------


@both
def test_no_session_timezone_bends_a_lease(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        zones = ["UTC", "Asia/Tokyo", "America/New_York", "Australia/Lord_Howe"]
        backends = [
            await room.connect(url=f"{postgres_url}?options=-c%20timezone%3D{zone}")
            for zone in zones
        ]
        granted = await say(backends[0], acquire("a", ttl=60.0))
        assert isinstance(granted, Granted)
        assert abs(granted.token / 1e6 - time.time()) < 60
        for other in backends[1:]:
            refused = await say(other, acquire("b"))
            assert isinstance(refused, Refused)
            assert 50 < refused.holders[0].expires_in <= 60

    Room(mode, postgres_url).run(body)


@both
def test_a_fork_takes_nothing_from_the_parent(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        await say(backend, acquire("a"))
        pid, fd = pid_of(backend), wire_of(backend).fd
        child = os.fork()
        if child == 0:
            try:
                backend.after_fork()
                is_closed = not os.path.exists(f"/proc/self/fd/{fd}")
                other = connection_to(PostgresStore(postgres_url), "blocking")
                step(other.open())
                refused = isinstance(step(other.apply([acquire("b")]))[0], Refused)
                step(other.close())
                os._exit(0 if is_closed and refused and backend.inbox == "" else 1)
            except BaseException:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await say(backend, Release(KEY, "a")) == Released()
        assert pid_of(backend) == pid

    Room(mode, postgres_url).run(body)


@both
def test_it_may_be_opened_again(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        await say(backend, acquire("a"))
        first = backend.inbox
        await backend.close()
        assert backend.inbox == ""
        assert list(await backend.notifications(0.01)) == []
        await backend.open()
        assert backend.inbox not in ("", first)
        await say(backend, acquire("b", queue=True, inbox=backend.inbox))
        assert await say(backend, Release(KEY, "a")) == Released()
        assert [push.event for push in await backend.notifications(10)] == ["granted"]

    Room(mode, postgres_url).run(body)


@both
def test_closing_leaves_no_connection_on_the_server(mode: Mode, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        await say(backend, acquire("a"))
        await room.close()

    Room(mode, postgres_url).run(body)
    assert_nobody_is_connected(postgres_url)


def test_dropping_a_backend_closes_it_without_a_warning(postgres_url: str) -> None:
    async def drop() -> None:
        backend = connection_to(PostgresStore(postgres_url), "async")
        await backend.open()
        del backend
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(drop())
    blocking = connection_to(PostgresStore(postgres_url), "blocking")
    step(blocking.open(listen=False))
    del blocking
    gc.collect()
    assert_nobody_is_connected(postgres_url)


def assert_nobody_is_connected(url: str) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'"
    with admin(url) as connection:
        end = time.monotonic() + 5
        while (count := connection.execute(query).fetchone()) != (0,):
            assert time.monotonic() < end, count
            time.sleep(0.02)


@both
def test_a_session_has_what_it_needs(mode: Mode, postgres_url: str) -> None:
    """Not synced commits could grant a lease twice after a crash; other settings are the user's."""
    mine = "-c%20synchronous_commit%3Doff%20-c%20statement_timeout%3D7s"

    async def body(room: Room) -> None:
        backend = await room.connect(url=f"{postgres_url}?options={mine}")
        show = "SELECT current_setting('synchronous_commit'), current_setting('statement_timeout')"
        assert await wire_of(backend).run(show, 5) == [("on", "7s")]

    Room(mode, postgres_url).run(body)


@both
@pytest.mark.parametrize("pooler", ["auto", "yes"])
def test_idle_keys_are_thrown_out_in_time(
    mode: Mode, pooler: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.stores.postgres.ledger.SWEEP_EVERY", 50)

    async def body(room: Room) -> None:
        backend = await room.connect(url=f"{postgres_url}?pooler={pooler}")
        with admin(postgres_url) as connection:
            connection.execute("CREATE SEQUENCE sweeps")
            connection.execute("ALTER FUNCTION dibs.sweep RENAME TO real_sweep")
            connection.execute("""
                CREATE FUNCTION dibs.sweep(integer) RETURNS bigint LANGUAGE sql
                AS $$ SELECT nextval('dibs.sweeps') $$""")
            for number in range(120):
                key = b"lock:%d" % number
                status = await say(backend, Inspect(key))
                assert isinstance(status, Status)
                assert status.key == key, "never the answer to the sweep"
            [(sweeps,)] = connection.execute("SELECT last_value FROM sweeps").fetchall()
        assert sweeps == 2

    Room(mode, postgres_url).run(body)


def test_scans_and_calls_share_a_connection(postgres_url: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        await backend.apply([acquire("a", b"lock:%03d" % number) for number in range(100)])
        calls = [backend.scan(b"lock:", None, 10), say(backend, Inspect(b"lock:001"))] * 10
        found: list[Any] = await asyncio.gather(*calls)
        assert [len(page.items) for page in found[::2]] == [10] * 10
        assert {status.key for status in found[1::2]} == {b"lock:001"}

    Room("async", postgres_url).run(body)


def test_commands_are_values(postgres_url: str) -> None:
    """Nothing that a command carries is ever taken for SQL."""

    async def body(room: Room) -> None:
        backend = await room.connect()
        evil = "'; DROP SCHEMA dibs CASCADE; -- {}\"\\%s%(a)s$1"
        command = Acquire(evil.encode(), evil, evil, 30.0, note=evil, inbox=evil)
        assert isinstance(await say(backend, command), Granted)
        status = await say(backend, Inspect(evil.encode()))
        assert isinstance(status, Status)
        assert (status.holders[0].owner, status.holders[0].note) == (evil, evil)

    Room("async", postgres_url).run(body)
