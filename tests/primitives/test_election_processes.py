"""Candidates of several processes on one SQLite file: whoever dies, terms don't overlap and tokens rise.

Run as a program it is one of those processes: `CANDIDATE URL FOLDER NUMBER SECONDS`.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import leasehold
import leasehold.sync
from leasehold.errors import LeaseLost
from leasehold.testing import Event, Recorder, check, read
from tests.runtime.scripts import run_script
from tests.runtime.test_forks import IN_CHILD

pytestmark = pytest.mark.once  # these kill processes, and take long

ROOT = Path(__file__).resolve().parents[2]
TIMING: dict[str, Any] = {"ttl": 0.9, "renew_deadline": 0.6, "retry": 0.15}


# -- one process ------------------------------------------------------------------------------------


class Candidate:
    """Stands until its time is over, and records its terms."""

    def __init__(self, url: str, folder: Path, seconds: float) -> None:
        self.url = url
        self.recorder = Recorder(folder / f"history-{os.getpid()}.jsonl")
        self.end = time.monotonic() + seconds
        self.draw = random.Random(os.getpid())
        self.asked = 0.0

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.end

    @property
    def callbacks(self) -> dict[str, Any]:
        return {"on_started": self.started, "on_stopped": self.stopped}

    def stand(self) -> None:
        self.asked = self.recorder.asked(b"leader:main")

    def started(self, term: Any) -> None:
        self.recorder.granted(term, self.asked)

    def stopped(self, term: Any) -> None:
        self.recorder.releasing(term)
        self.stand()

    def believe(self, term: Any) -> None:
        at = self.recorder.now()
        term.ensure()
        self.recorder.believed(term, at)
        self.recorder.renewed(term)

    async def run_in_loop(self) -> None:
        """In the background, with blocks that are for the leader only."""
        async with leasehold.connect(self.url) as client:
            leader = client.leader_election("main", **TIMING, **self.callbacks)
            self.stand()
            async with leader.campaign() as campaign:
                while self.goes_on:
                    if not await campaign.wait(0.1):
                        continue
                    try:
                        async with campaign.guard() as term:
                            for _ in range(self.draw.randint(1, 40)):
                                await asyncio.sleep(0.01)
                                self.believe(term)
                    except (LeaseLost, leasehold.NotHeld):
                        continue
                    campaign.resign()

    def run_in_thread(self) -> None:
        """In blocks, one term after the other."""
        with leasehold.sync.connect(self.url) as client:
            leader = client.leader_election("main", **TIMING, **self.callbacks)
            while self.goes_on:
                self.stand()
                try:
                    with leader as term:
                        for _ in range(self.draw.randint(1, 40)):
                            time.sleep(0.01)
                            self.believe(term)
                except LeaseLost:
                    pass
                time.sleep(0.01)


# -- the tests --------------------------------------------------------------------------------------


def start(folder: Path, number: int, seconds: float) -> "subprocess.Popen[bytes]":
    url = f"sqlite:///{folder / 'leases.db'}"
    arguments = [url, str(folder), str(number), str(seconds)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.primitives.test_election_processes", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        start_new_session=True,
    )


def terms_of(folder: Path) -> tuple[list[Event], list[Event]]:
    events = read(*folder.glob("history-*.jsonl"))
    return events, sorted((e for e in events if e.what == "granted"), key=lambda e: e.token)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_terms_do_not_overlap_and_tokens_rise_under_kills_and_pauses(tmp_path: Path) -> None:
    draw, seconds, kills = random.Random(1), 12.0, 0
    supervisor = Recorder(tmp_path / "history-supervisor.jsonl")
    candidates = [start(tmp_path, number, seconds) for number in range(3)]
    end = time.monotonic() + seconds
    while time.monotonic() < end - 2:
        time.sleep(draw.uniform(0.2, 0.6))
        number = draw.randrange(3)
        victim = candidates[number]
        if draw.random() < 0.6:
            kills += 1
            victim.kill()
            victim.wait()
            supervisor.disturbed(victim.pid)
            candidates[number] = start(tmp_path, number, max(end - time.monotonic(), 0.5))
        else:
            victim.send_signal(signal.SIGSTOP)
            supervisor.disturbed(victim.pid)
            time.sleep(draw.choice((0.5, 1.2, 2.0)) * TIMING["ttl"])
            victim.send_signal(signal.SIGCONT)
            supervisor.disturbed(victim.pid)
    assert [candidate.wait(60) for candidate in candidates] == [0, 0, 0]
    supervisor.close()
    events, terms = terms_of(tmp_path)
    assert kills > 3
    assert len(terms) > 15
    assert len({term.process for term in terms}) > 3
    assert [term.at for term in terms] == sorted(term.at for term in terms)
    assert check(events) == []


@pytest.mark.multiprocess
def test_who_is_killed_is_followed_within_a_ttl(tmp_path: Path) -> None:
    """And a clean end is followed at once."""
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    with leasehold.sync.connect(url) as client:
        leader = client.leader_election("main", ttl=4, renew_deadline=3, retry=0.5)
        first = start(tmp_path, 1, 60)
        while leader.who() is None:
            time.sleep(0.01)
        with leader.campaign() as campaign:
            assert not campaign.is_leader()
            first.kill()
            first.wait()
            killed = time.monotonic()
            assert campaign.wait(10)
            assert time.monotonic() - killed < TIMING["ttl"] + 1
            term = campaign.term
            assert term is not None
            second = start(tmp_path, 1, 1.5)
            while client.status("main", "leader").waiting == 0:
                time.sleep(0.01)
        left = time.monotonic()
        while (seen := leader.who()) is None or seen.token <= term.token:
            time.sleep(0.005)
        assert time.monotonic() - left < 1.5, "long before a ttl of 4 s"
        assert second.wait(30) == 0


@pytest.mark.multiprocess
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_forked_child_leads_nothing_and_ends_nothing(store: str, tmp_path: Path) -> None:
    url = "memory://forked" if store == "memory" else f"sqlite:///{tmp_path / 'leases.db'}"
    lines = run_script(
        IN_CHILD
        + """
import time
from leasehold import LeaseLost, NotHeld
from leasehold.sync import connect

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
term = leader.__enter__()

def leave():
    try:
        leader.__exit__(None, None, None)
    except LeaseLost as error:
        return error.reason

in_child(leave)
time.sleep(1.2)
print(leader.is_leader())
leader.__exit__(None, None, None)
print(len(told))
client.close()
""",
        url,
    )
    refused = ["NotHeld", "NotHeld", "NotHeld", "LeaseLost"]
    assert lines[0] == repr(((False, False, False, False), "closed", refused, []))
    assert lines[1:3] == ["True True True", "True"]
    assert lines[3:] == ["'closed'", "True", "2"]


if __name__ == "__main__":
    url, folder, number, seconds = sys.argv[1:]
    candidate = Candidate(url, Path(folder), float(seconds))
    if int(number) % 2:
        candidate.run_in_thread()
    else:
        asyncio.run(candidate.run_in_loop())
