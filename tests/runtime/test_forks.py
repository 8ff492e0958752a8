"""Children share nothing with their parent, by fork or by multiprocessing, and the parent goes on."""

import copy
import json
import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.locks.requests import DRAWN
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


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.once
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_children_take_turns_under_a_lock_of_their_parents(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite:///{tmp_path / 'leases.db'}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    (line,) = run_script(f"from tests.runtime.counting import main; main({method!r})")
    pids, owners, tokens = zip(*json.loads(line), strict=True)
    assert len(set(pids)) == 3, "the parent and two children"
    assert [owner.split("/")[1] for owner in owners[1:]] == [str(pid) for pid in pids[1:]]
    assert len(set(tokens)) == 5


def test_no_two_processes_draw_the_same_id() -> None:
    """Ids are drawn many at a time, and what is left of them is not a child's to use."""
    lines = run_script(
        """
        import os
        from dibs.locks.requests import DRAWN, new_id

        new_id()
        for child in range(3):
            if os.fork() == 0:
                print(*(new_id() for _ in range(DRAWN)), flush=True)
                os._exit(0)
            os.wait()
        print(*(new_id() for _ in range(DRAWN)))
        """
    )
    ids = [each for line in lines for each in line.split()]
    assert len(ids) == len(set(ids)) == 4 * DRAWN


def test_what_names_no_client_can_be_sent() -> None:
    for thing in (
        dibs.Lock("a", ttl=7),
        dibs.sync.Semaphore("a", 2),
        dibs.RWLock("a"),
        dibs.sync.TaskLock("a", 1, 2),
    ):
        sent = pickle.loads(pickle.dumps(thing))
        assert (type(sent), sent.key) == (type(thing), thing.key)
        assert getattr(sent, "config", None) == getattr(thing, "config", None)
    with dibs.sync.connect("memory://sent") as client, client.lock("a") as lease:
        for unsendable in (client, client.lock("a"), client.rwlock("a").write()):
            for send in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match=r"connect\(url\) there"):
                    send(unsendable)
        with pytest.raises(TypeError, match=r"send lease\.detach\(\)"):
            pickle.dumps(lease)
