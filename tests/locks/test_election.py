"""Leader elections: a block that leads, what ends its term, and who is told when."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LeaderConfig, LeaseLost, Reentrant, UnsafeTiming
from dibs.core.timing import trusted
from dibs.model import Command, Renew
from dibs.session import StoreSession
from tests.locks.waits import time_passes, until
from tests.locks.worlds import World, away, heal, in_both_worlds, outage, site


def who_leads(w: World, name: str = "main") -> Any:
    """As another process sees it, whatever becomes of the tasks here."""
    client = dibs.sync.Client(StoreSession(w.store, clock=w.clock))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(client.leader_election(name).who).result()


class Diary:
    """What the callbacks of several candidates were told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def of(self, who: str) -> dict[str, Any]:
        def started(term: Any) -> None:
            assert not term.lost
            self.told.append(f"{who} starts")

        def stopped(term: Any) -> None:
            self.told.append(f"{who} stops")

        return {"on_started": started, "on_stopped": stopped}


@in_both_worlds
async def test_it_renews_every_retry_for_as_long_as_it_leads(w: World) -> None:
    asked: list[float] = []

    def note(commands: Sequence[Command]) -> None:
        asked.extend(w.clock.now() for c in commands if isinstance(c, Renew))

    store, client = site(w)
    leader = client.leader_election("main", ttl=15, renew_deadline=10, retry=2)
    term = await w.enter(leader)
    store.before = note
    began = w.clock.now()
    for _ in range(12):
        w.clock.advance(5)
        term.ensure(needs=7)
    assert 28 <= len(asked) <= 36, "about every 2 s"
    assert asked[0] - began <= 2
    await w.leave(leader)


@pytest.mark.parametrize(
    ("ttl", "renew_deadline", "leads_for"), [(15, 10, 10), (10, 9.9, trusted(10))]
)
@in_both_worlds
async def test_it_leads_until_the_stricter_deadline_and_no_longer(
    w: World, ttl: float, renew_deadline: float, leads_for: float
) -> None:
    """`renew_deadline`, or the ttl less the margin. Then it stays closed for `lock_delay`."""
    store, client = site(w)
    timing = {"ttl": ttl, "renew_deadline": renew_deadline, "retry": 2}
    leader = client.leader_election("main", **timing, lock_delay=30)
    term = await w.enter(leader)
    w.clock.advance(2)
    assert term.remaining <= leads_for
    with outage(store):
        w.clock.advance(leads_for - 2.01)
        assert leader.is_leader()
        w.clock.advance(2.02)
        assert not leader.is_leader()
    assert (term.reason, term.remaining) == ("expired", 0)
    assert who_leads(w).token == term.token, "the store lets go only later"
    with pytest.raises(LeaseLost):
        await w.get(term.renew())
    with outage(store):
        w.clock.advance(ttl - leads_for + 0.1)
        with pytest.raises(LeaseLost):
            await w.leave(leader)
    (holder,) = (await w.get(w.client.status("main", "leader"))).holders
    assert holder.state == "retained"
    assert who_leads(w) is None


@in_both_worlds
async def test_callbacks_come_in_order_and_their_errors_harm_nobody(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    diary, leader = Diary(), None

    def fails(term: Any) -> None:
        diary.told.append(f"leads: {leader.is_leader()}")  # type: ignore[attr-defined]
        raise RuntimeError("a callback's own trouble")

    leader = w.client.leader_election("main", on_started=fails, on_stopped=fails)
    term = await w.enter(leader)
    diary.told.append("body")
    assert not term.lost
    await w.leave(leader)
    assert diary.told == ["leads: True", "body", "leads: True"], "before anybody else leads"
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["on_started of leader main failed", "on_stopped of leader main failed"]


@in_both_worlds
async def test_callbacks_may_be_coroutine_functions_in_a_loop(w: World) -> None:
    told: list[str] = []

    async def started(term: Any) -> None:
        await asyncio.sleep(0)
        told.append("starts")

    if not w.is_async:
        with pytest.raises(TypeError, match="coroutine function"):
            w.client.leader_election("main", on_stopped=started)
        with pytest.raises(TypeError, match="coroutine function"):
            w.client.leader_election("main").run(started)
        return
    async with w.client.leader_election("main", on_started=started):
        told.append("body")
    assert told == ["starts", "body"]


@in_both_worlds
async def test_resigning_ends_the_term_from_anywhere(w: World) -> None:
    leader = w.client.leader_election("main")
    assert leader.resign() is False
    term = await w.enter(leader)
    with pytest.raises(Reentrant):
        await w.enter(leader)
    thread = threading.Thread(target=leader.resign)
    thread.start()
    thread.join()
    assert not leader.is_leader()
    assert term.reason == "resigned"
    assert who_leads(w) is not None, "it hands over when its body has ended"
    with pytest.raises(LeaseLost, match="its leader resigned") as caught:
        await w.leave(leader)
    assert caught.value.reason == "resigned"
    again = await w.enter(leader)
    assert again.number == 2
    with pytest.raises(TypeError, match="its election's ttl"):
        await w.get(again.renew(60))
    with pytest.raises(TypeError, match="resign"):
        again.detach()
    await w.leave(leader)


@in_both_worlds
async def test_resigning_in_on_started_ends_the_term_before_its_body(w: World) -> None:
    diary = Diary()
    told = diary.of("a")

    def started(term: Any) -> None:
        told["on_started"](term)
        leader.resign()

    leader = w.client.leader_election("main", on_started=started, on_stopped=told["on_stopped"])
    with pytest.raises(LeaseLost, match="resigned"):
        await w.enter(leader)
    assert diary.told == ["a starts", "a stops"]
    await until(w, lambda: who_leads(w) is None)


def job(w: World, body: Any) -> Any:
    """A function for `run`, in the world's own way."""
    if not w.is_async:
        return body

    async def function(term: Any) -> Any:
        return body(term)

    return function


@in_both_worlds
async def test_run_leads_until_its_function_ends_by_itself(w: World) -> None:
    diary, ready = Diary(), threading.Event()
    leader = w.client.leader_election("main", **diary.of("a"))

    def work(term: Any) -> int:
        assert ready.is_set()
        assert leader.is_leader()
        return int(term.number)

    assert await w.get(leader.run(job(w, work), ready=ready)) == 1
    assert diary.told == ["a starts", "a stops"]

    def fails(term: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await w.get(leader.run(job(w, fails)))
    assert diary.told == ["a starts", "a stops"] * 2
    assert await w.get(leader.who()) is None


@in_both_worlds
async def test_run_passes_on_what_is_not_its_own_loss(w: World) -> None:
    leader = w.client.leader_election("main")
    other = w.client.lock("other", auto_renew=False, ttl=1)

    def closes(term: Any) -> None:
        w.client.session.keeper.close()
        term.ensure()

    with pytest.raises(LeaseLost) as caught:
        await w.get(leader.run(job(w, closes)))
    assert caught.value.reason == "closed"

    lease = await w.get(other.acquire())

    def loses(term: Any) -> None:
        w.clock.advance(1)
        lease.ensure()

    with pytest.raises(LeaseLost) as caught:
        await w.get(leader.run(job(w, loses)))
    assert caught.value.key == b"lock:other"


async def test_run_waits_for_an_outage_to_end_and_leads_until_it_is_cancelled(w: World) -> None:
    store, client = site(w, connect_timeout=0)
    store.before = away
    leader = client.leader_election("main")
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(leader.run(ready=ready))
    await ready
    for _ in range(20):
        w.clock.advance(1)
        await asyncio.sleep(0.001)
    assert not leader.is_leader()
    heal(store)
    await time_passes(w, leader.is_leader)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not leader.is_leader()
    assert who_leads(w) is None, "it hands over at once"


@pytest.mark.parametrize(
    ("timing", "told"),
    [
        ({"renew_deadline": 20}, "a longer ttl= or a shorter renew_deadline="),
        ({"retry": 0}, "nothing but renew"),
        ({"retry": 9}, "1.2 times retry must be less"),
        ({"ttl": 5, "renew_deadline": 4.9, "retry": 3.8}, "steps down 4.45 s after"),
        ({"ttl": 0.01, "renew_deadline": 0.005, "retry": 0.001}, "at least 0.1 s"),
    ],
)
def test_timings_that_make_no_sense_are_refused(timing: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsafeTiming, match=told):
        dibs.LeaderElection("main", **timing)
    with pytest.raises(UnsafeTiming, match=told):
        LeaderConfig(**timing)


@in_both_worlds
async def test_run_stands_again_after_each_loss(w: World) -> None:
    store, client = site(w)
    leader = client.leader_election("main")
    seen: list[tuple[int, int]] = []

    def work(term: Any) -> str:
        seen.append((term.number, term.token))
        if len(seen) < 3:
            with outage(store):
                w.clock.advance(16)  # the store has let go as well
            term.ensure()
        return "done"

    assert await w.get(leader.run(job(w, work))) == "done"
    assert [number for number, _ in seen] == [1, 2, 3]
    assert [token for _, token in seen] == sorted(token for _, token in seen)
