"""Processes that use one namespace: they fork, end, are interrupted and killed, and nobody is held up."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import dibs.sync
from tests.backends.temporal.looking import Looker
from tests.cli.processes import Cli, end, line
from tests.runtime.scripts import run_script
from tests.servers.waiting import wait_until

pytestmark = [pytest.mark.multiprocess, pytest.mark.once]


@pytest.fixture
def cli(url: str, tmp_path: Path) -> Iterator[Cli]:
    found = Cli(tmp_path)
    found.url = url
    yield found
    found.kill_all()


@pytest.fixture
def client(url: str) -> Iterator[dibs.sync.Client]:
    with dibs.sync.connect(url) as client:
        yield client


def waiting(client: dibs.sync.Client, name: str, kind: str = "lock") -> int:
    return client.status(name, kind).waiting  # type: ignore[arg-type]


def test_a_pool_is_shared_from_the_shell(cli: Cli, client: dibs.sync.Client) -> None:
    name = f"gpu-{uuid4().hex}"
    pool = client.semaphore(name, 4)
    held = [pool.acquire() for _ in range(3)]
    tell = ["--", "sh", "-c", "echo $LEASE_SLOT $LEASE_TOKEN; read x"]
    running = cli.start("run", name, "--capacity", "4", *tell, stdin=subprocess.PIPE)
    slot, token = line(running).split()
    assert slot == "3"
    assert int(token) > max(lease.token for lease in held)
    assert pool.try_acquire() is None
    code, _, told = end(running)
    assert code == 1, told  # `read` met the end
    assert len(pool.status().holders) == 3
    for lease in held:
        lease.release()


def test_an_interrupted_waiter_leaves_the_queue(cli: Cli, client: dibs.sync.Client) -> None:
    name = uuid4().hex
    with client.lock(name):
        waiter = cli.start("run", name, "--", "true")
        wait_until(lambda: waiting(client, name) == 1, "it waits")
        waiter.send_signal(signal.SIGINT)
        assert end(waiter)[0] == 130
        wait_until(lambda: waiting(client, name) == 0, "its place is given up")


def test_a_killed_waiter_is_passed_over(cli: Cli, client: dibs.sync.Client) -> None:
    name = uuid4().hex
    with client.lock(name, ttl=60):
        dead = cli.start("run", name, "--ttl", "2", "--", "true")
        wait_until(lambda: waiting(client, name) == 1, "it waits")
        living = cli.start("run", name, "--", "echo", "mine")
        wait_until(lambda: waiting(client, name) == 2, "so does the next")
        dead.kill()
    assert line(living) == "mine"
    assert end(living)[0] == 0


def test_a_killed_holder_loses_it_with_its_ttl(cli: Cli, client: dibs.sync.Client) -> None:
    name = uuid4().hex
    holder = cli.hold(name, "--ttl", "2", stdin=subprocess.PIPE)
    holder.kill()
    with client.lock(name, wait=30) as lease:
        assert lease.token > 0


def test_who_ends_gives_up_what_it_holds(url: str, client: dibs.sync.Client) -> None:
    name = uuid4().hex
    code = """if True:
        import sys
        from dibs.sync import connect
        lease = connect(sys.argv[1]).lock(sys.argv[2], ttl=600).acquire()
        print(lease.token)
    """
    command = [sys.executable, "-c", code, url, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    with client.lock(name, wait=10) as lease:
        assert lease.token > int(done.stdout)


@pytest.mark.parametrize("world", ["async", "blocking"])
def test_a_child_forked_after_the_first_use_is_told_so_and_ends_by_itself(
    url: str, world: str
) -> None:
    """It holds nothing, and its parent goes on; a child that was forked before may use the store."""
    code = """if True:
        import asyncio, os, sys
        import dibs, dibs.sync

        url, name, world = sys.argv[1:]

        def in_child(work):
            child = os.fork()
            if child:
                return print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            try:
                work()
            except dibs.InvalidRequest as error:
                print("Temporal's threads do not survive a fork" in str(error), flush=True)
            sys.exit(7)

        def blocking():
            client = dibs.sync.connect(url)
            with client.lock(name, ttl=30) as lease:
                in_child(lambda: print(lease.lost, flush=True) or client.lock("own").try_acquire())
                in_child(lambda: dibs.sync.connect(url).lock("own").try_acquire())
                lease.renew()

        async def alone():
            async with dibs.connect(url) as client, client.lock(name):
                pass

        if world == "blocking":
            in_child(lambda: dibs.sync.connect(url).lock(name).acquire().release())
            blocking()
        else:
            in_child(lambda: asyncio.run(alone()))
            asyncio.run(alone())
            in_child(lambda: asyncio.run(alone()))
    """
    command = [sys.executable, "-W", "ignore", "-c", code, url, uuid4().hex, world]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    blocking = ["7", "True", "True", "7", "True", "7"]
    expected = blocking if world == "blocking" else ["7", "True", "7"]
    assert (done.stdout.split(), done.returncode) == (expected, 0), done.stderr


def test_nothing_is_left_behind_by_a_program(url: str) -> None:
    """No mailbox of a client that has ended; its broker ends by itself."""
    told = run_script(
        """
        import asyncio, sys
        import dibs

        async def main():
            async with dibs.connect(sys.argv[1]) as one, dibs.connect(sys.argv[1]) as two:
                held = await one.lock(sys.argv[2]).acquire()
                waiter = asyncio.create_task(two.lock(sys.argv[2]).acquire())
                while not (await one.lock(sys.argv[2]).status()).waiting:
                    pass
                await held.release()
                lease = await waiter
                print(two.hub.loop_runtime().inbox)
                await lease.release()

        asyncio.run(main())
        """,
        url,
        uuid4().hex,
    )
    state = Looker(url).state(f"DibsMailbox:{told[0]}")
    assert state is not None
    assert state.name == "TERMINATED"
