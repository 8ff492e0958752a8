"""Leaders in processes of their own: SIGTERM hands over, forks lead nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import dibs.sync
from tests.runtime.scripts import run_script
from tests.runtime.test_forks import IN_CHILD

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

LEADING = {
    "async": """
import asyncio, sys, dibs

async def lead(term):
    print("leads", flush=True)
    await asyncio.sleep(60)

async def main():
    async with dibs.connect(sys.argv[1]) as client:
        print(await client.leader_election("main").run(lead), flush=True)

asyncio.run(main())
""",
    "sync": """
import sys, time, dibs.sync

def lead(term):
    print("leads", flush=True)
    time.sleep(60)

with dibs.sync.connect(sys.argv[1]) as client:
    print(client.leader_election("main").run(lead), flush=True)
""",
}


@pytest.mark.parametrize("side", LEADING)
def test_sigterm_hands_over_and_ends_run(side: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    with subprocess.Popen(
        [sys.executable, "-c", LEADING[side], url], stdout=subprocess.PIPE, text=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "leads\n"
        leader.terminate()
        assert leader.stdout.read() == "None\n"
        assert leader.wait(30) == 0
    with dibs.sync.connect(url) as client:
        assert client.leader_election("main").who() is None, "it has handed over"


def test_a_forked_child_leads_nothing_and_ends_nothing(tmp_path: Path) -> None:
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
        f"sqlite:///{tmp_path / 'leases.db'}",
    )
    refused = ["NotHeld", "NotHeld", "NotHeld", "LeaseLost"]
    assert lines[0] == repr(((False, False, False, False), "closed", refused, []))
    assert lines[1:] == ["True True True", "True"]
