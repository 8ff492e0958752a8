"""Two candidates of docs/how-to/leader.md."""

import yaml

from dibs.sync import Client
from tests.how_to.programs import Programs, line_with, printed
from tests.servers.waiting import wait_until

PAGE = "how-to/leader.md"
PLANNER = "python -W error planner.py"


def test_sigterm_hands_over_at_once(programs: Programs, client: Client) -> None:
    """Long before the term would expire."""
    programs.environment["DIBS_LEADER__PLANNER__TTL"] = "10m"
    election = client.leader_election("planner")
    first = programs.start(PLANNER)
    line_with("leads, with token", first)
    second = programs.start(PLANNER)
    wait_until(lambda: election.status().waiting, "the second is a candidate")
    first.terminate()
    line_with("leads, with token", second)
    assert printed(first) == "stops\n"
    second.terminate()
    assert printed(second) == "stops\n"
    text = (programs.folder / "planner.yaml").read_text()
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    assert (programs.folder / pod["containers"][0]["command"][1]).exists()
    assert pod["terminationGracePeriodSeconds"] > 0
