"""Children share nothing with their parent, by fork or by multiprocessing, and the parent goes on."""

import asyncio
import copy
import multiprocessing
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import LeaseLost, NotHeld
from dibs.locks.requests import DRAWN, new_id
from dibs.sync import connect
from tests.runtime.conftest import url_of
from tests.runtime.counting import work
from tests.stores.sides import in_child

pytestmark = pytest.mark.multiprocess

TTL = 0.8


@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_a_child_of_a_blocking_holder(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    memory = f"memory://{uuid4()}"
    client = connect(memory if store == "memory" else url_of(store, request, tmp_path))
    told: list[object] = []
    lock = client.lock("a", ttl=TTL, on_lost=told.append)

    def child() -> None:
        assert (lease.lost, lease.reason, lease.remaining) == (True, "closed", 0)
        assert lease.release() is False
        own = client.lock("own", ttl=TTL).acquire(wait=5)
        own.renew()
        assert own.release() is True
        assert (client.lock("a").try_acquire() is None) == (store != "memory")
        assert told == []

    def leaves() -> None:
        """As a worker does that is forked within the block and returns from it."""
        with pytest.raises(LeaseLost) as lost:
            lock.__exit__(None, None, None)
        assert lost.value.reason == "closed"

    with lock as lease:
        client.lock("warm").acquire().release()
        in_child(child)
        in_child(leaves)
        time.sleep(1.1 * TTL)  # in which the keeper is at work
        lease.ensure()
    assert not client.lock("a").locked()
    assert told == []
    client.close()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_a_child_of_an_async_holder(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client = dibs.connect(url_of(store, request, tmp_path))
    told: list[object] = []

    def child() -> None:
        assert (lease.lost, lease.reason) == (True, "closed")
        asyncio.events._set_running_loop(None)  # it has a loop of its own
        asyncio.run(use())

    async def use() -> None:
        async with client.lock("own", wait=5) as own:
            await own.renew()
            assert not own.lost

    async with client.lock("a", ttl=TTL, on_lost=told.append) as lease:
        in_child(child)
        await asyncio.sleep(1.1 * TTL)
        lease.ensure()
    assert not await client.lock("a").locked()
    assert told == []
    await client.close()


def test_forks_amid_the_work_of_other_threads(url: str) -> None:
    """Whatever lock another thread has at that moment, the child isn't stuck on it."""
    client, over = connect(url), threading.Event()

    def cycle(name: str) -> None:
        while not over.is_set():
            with client.lock(name, ttl=0.5):
                pass

    def use(name: str) -> None:
        client.lock(name).acquire(wait=10).release()

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(cycle, f"key-{number}") for number in range(4)]
        for number in range(20):
            in_child(partial(use, f"own-{number}"))
        over.set()
    for each in working:
        each.result()
    assert not any(client.lock(f"key-{number}").locked() for number in range(4))
    client.close()


@pytest.mark.once
def test_a_forked_child_leads_nothing_and_ends_nothing(url: str) -> None:
    client, told = connect(url), list[int]()
    timing: Any = {"ttl": 0.9, "renew_deadline": 0.6, "retry": 0.15}
    leader = client.leader_election("main", **timing, on_stopped=lambda _: told.append(os.getpid()))
    campaign = leader.campaign()

    def child() -> None:
        for ask in (partial(campaign.wait, 1), partial(campaign.wait_lost, 1)):
            with pytest.raises(NotHeld):
                ask()
        with pytest.raises(NotHeld), campaign.guard():
            pass
        with pytest.raises(LeaseLost):
            term.ensure()
        led = (leader.is_leader(), campaign.is_leader(), campaign.resign(), leader.resign())
        assert led == (False,) * 4
        campaign.__exit__()
        assert (term.reason, told) == ("closed", [])

    with campaign:
        campaign.wait()
        term: Any = campaign.term
        in_child(child)
        time.sleep(1.2)
        assert campaign.is_leader()
        who: Any = leader.who()
        assert (campaign.term, who.token) == (term, term.token)
    assert told == [os.getpid()]
    client.close()


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the test runner has threads
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_children_take_turns_under_a_lock_of_their_parents(
    method: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", url)
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        monkeypatch.setenv("WARM", "yes")
        context.set_forkserver_preload(["tests.runtime.counting"])
    answers = context.Queue()
    with connect(url, default=True):
        lock = dibs.sync.Lock("counter")
        with lock:
            pass  # so it is in use already
        children = [context.Process(target=work, args=(lock, answers)) for _ in range(2)]
        for child in children:
            child.start()
        pids, owners, tokens = zip(*(answers.get(timeout=60) for _ in range(4)), strict=True)
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        assert not lock.locked()
    assert len({os.getpid(), *pids}) == 3
    assert [owner.split("/")[1] for owner in owners] == [str(pid) for pid in pids]
    assert len(set(tokens)) == 4


def test_no_two_processes_draw_the_same_id(tmp_path: Path) -> None:
    """Ids are drawn many at a time, and what is left of them is not a child's to use."""

    def draw(name: str) -> None:
        (tmp_path / name).write_text(" ".join(new_id() for _ in range(DRAWN)))

    new_id()
    for name in "abc":
        in_child(partial(draw, name))
    draw("parent")
    ids = [each for path in tmp_path.iterdir() for each in path.read_text().split()]
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
