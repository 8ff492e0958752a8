"""Processes that use one namespace: they fork, end, are interrupted and killed, and nobody is held up."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import dibs.sync
from tests.cli.processes import Cli, end, line
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
        assert end(waiter)[0] == -signal.SIGINT
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


def test_what_was_used_before_a_fork_is_of_no_use_in_the_child(url: str) -> None:
    """It says so, the child can connect anew and ends as any program does, and its parent goes on."""
    code = """if True:
        import os, sys
        from dibs import NotConfigured
        from dibs.sync import connect
        client = connect(sys.argv[1])
        with client.lock(sys.argv[2], ttl=30) as lease:
            child = os.fork()
            if not child:
                try:
                    client.lock(sys.argv[2] + "-own").acquire(wait=5)
                except NotConfigured as error:
                    print(lease.lost, "connect in the child" in str(error), flush=True)
                with connect(sys.argv[1]) as own:
                    print(own.lock(sys.argv[2]).try_acquire() is None, flush=True)
                    own.lock(sys.argv[2] + "-own").acquire(wait=5).release()
                print("ends", flush=True)
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            lease.renew()
            print(lease.lost)
    """
    command = [sys.executable, "-W", "ignore", "-c", code, url, uuid4().hex]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = ["True True", "True", "ends", "7", "False"]
    assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stderr


def test_a_child_ends_whose_parent_found_no_server() -> None:
    """Its threads are there all the same, and in the child they are not."""
    code = """if True:
        import os, sys
        from dibs import BackendUnavailable
        from dibs.sync import connect
        try:
            connect("temporal://127.0.0.1:1").lock("x").acquire(wait=0)
        except BackendUnavailable:
            print("nobody", flush=True)
        for _ in range(5):
            child = os.fork()
            if not child:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.returncode) == (["nobody", *"77777"], 0), done.stderr
