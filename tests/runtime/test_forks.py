"""A holder that forks: the child holds nothing and gives up nothing, and the parent goes on."""

from pathlib import Path

import pytest

from tests.runtime.conftest import url_of
from tests.runtime.scripts import run_script

pytestmark = pytest.mark.multiprocess

IN_CHILD = """
import logging, os, sys, traceback
logging.getLogger("dibs").setLevel(logging.ERROR)

def in_child(action):
    "Run something in a forked child, and print what it returns."
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, repr(action()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        print(lines.read())
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_a_child_of_a_blocking_holder(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = "memory://forked" if store == "memory" else url_of(store, request, tmp_path)
    lines = run_script(
        IN_CHILD
        + """
from dibs import LeaseLost
from dibs.sync import connect

client = connect(sys.argv[1])
told = []
lock = client.lock("a", ttl=0.6, on_lost=lambda lease: told.append("told"))
with lock as lease:
    client.lock("warm").acquire().release()

    def child():
        try:
            lease.ensure()
        except LeaseLost as error:
            reason = error.reason
        own = client.lock("own", ttl=0.6).acquire(wait=5)
        own.renew()
        return lease.lost, reason, lease.release(), lease.remaining, own.release(), told

    def leaves():
        "As a worker does that is forked within the block and returns from it."
        try:
            lock.__exit__(None, None, None)
        except LeaseLost as error:
            return error.reason

    in_child(child)
    in_child(leaves)
    in_child(lambda: client.lock("a").try_acquire() is None)
    import time; time.sleep(0.7)  # longer than a ttl, in which the keeper is at work
    lease.ensure()
print(lease.lost, client.lock("a").locked(), told)
client.close()
""",
        url,
    )
    assert lines[0] == "(True, 'closed', False, 0.0, True, [])"
    assert lines[1:] == ["'closed'", str(store != "memory"), "False False []"]


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_child_of_an_async_holder(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lines = run_script(
        IN_CHILD
        + """
import asyncio
from dibs import LeaseLost, connect

async def main():
    client = connect(sys.argv[1])
    told = []
    async with client.lock("a", ttl=0.6, on_lost=told.append) as lease:
        def child():
            return lease.lost, lease.reason

        in_child(child)

        def child_with_a_loop_of_its_own():
            asyncio.events._set_running_loop(None)

            async def inner():
                async with client.lock("own", wait=5) as own:
                    await own.renew()
                    return own.lost

            return asyncio.run(inner())

        in_child(child_with_a_loop_of_its_own)
        await asyncio.sleep(0.7)  # longer than a ttl
        lease.ensure()
    print(await client.lock("a").locked(), told)
    await client.close()

asyncio.run(main())
""",
        url_of(store, request, tmp_path),
    )
    assert lines == ["(True, 'closed')", "False", "False []"]


def test_forks_amid_the_work_of_other_threads(url: str) -> None:
    """Whatever lock another thread has at that moment, the child isn't stuck on it."""
    lines = run_script(
        IN_CHILD
        + """
import threading
from dibs.sync import connect

client = connect(sys.argv[1])
over = threading.Event()

def work(name):
    while not over.is_set():
        with client.lock(name, ttl=0.5):
            pass

threads = [threading.Thread(target=work, args=(f"key-{n}",)) for n in range(4)]
for thread in threads:
    thread.start()
for number in range(20):
    in_child(lambda: client.lock(f"own-{number}").acquire(wait=10).release())
over.set()
for thread in threads:
    thread.join()
print(any(client.lock(f"key-{n}").locked() for n in range(4)))
client.close()
""",
        url,
    )
    assert lines == ["True"] * 20 + ["False"]


@pytest.mark.once
def test_a_forked_child_leads_nothing_and_ends_nothing(url: str) -> None:
    lines = run_script(
        IN_CHILD
        + """
import time
from dibs import LeaseLost, NotHeld
from dibs.sync import connect

client = connect(sys.argv[1])
told = []
timing = dict(ttl=0.9, renew_deadline=0.6, retry=0.15)
leader = client.leader_election("main", **timing, on_stopped=lambda term: told.append(os.getpid()))
campaign = leader.campaign()
with campaign:
    campaign.wait()
    term = campaign.term

    def child():
        asked = []
        for ask in (campaign.wait, campaign.wait_lost, campaign.guard().__enter__, term.ensure):
            try:
                ask()
            except (NotHeld, LeaseLost) as error:
                asked.append(type(error).__name__)
        led = leader.is_leader(), campaign.is_leader(), campaign.resign(), leader.resign()
        campaign.__exit__()
        return led, term.reason, asked, told

    in_child(child)
    time.sleep(1.2)
    print(campaign.is_leader(), campaign.term is term, leader.who().token == term.token)
print(told == [os.getpid()])
client.close()
""",
        url,
    )
    refused = ["NotHeld", "NotHeld", "NotHeld", "LeaseLost"]
    assert lines[0] == repr(((False, False, False, False), "closed", refused, []))
    assert lines[1:] == ["True True True", "True"]
