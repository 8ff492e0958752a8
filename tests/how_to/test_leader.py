"""Two candidates of docs/how-to/leader.md."""

import sys
from pathlib import Path

import pytest
import yaml

from dibs.sync import connect
from tests.how_to.programs import Programs, line_with, printed
from tests.servers.waiting import wait_until

PLANNER = (sys.executable, "-W", "error", "planner.py")


@pytest.mark.multiprocess
def test_sigterm_hands_over_at_once(tmp_path: Path) -> None:
    """Long before the term would expire."""
    with (
        Programs("how-to/leader.md", tmp_path, DIBS_LEADER__PLANNER__TTL="10m") as programs,
        connect(programs.url) as client,
    ):
        election = client.leader_election("planner")
        first = programs.start(*PLANNER)
        line_with("leads, with token", first)
        second = programs.start(*PLANNER)
        wait_until(lambda: election.status().waiting, "the second is a candidate")
        first.terminate()
        line_with("leads, with token", second)
        assert printed(first) == "stops\n"
        second.terminate()
        assert printed(second) == "stops\n"
    pod = yaml.safe_load((tmp_path / "planner.yaml").read_text())["spec"]["template"]["spec"]
    assert (tmp_path / pod["containers"][0]["command"][1]).exists()
    assert pod["terminationGracePeriodSeconds"] > 0
