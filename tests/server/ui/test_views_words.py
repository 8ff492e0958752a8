"""What the dashboard's page knows by heart: its scripts say what the service's Python says."""

import re
from importlib.resources import files
from typing import get_args

import pytest

from dibs.core.names import KINDS
from dibs.model import MANY
from dibs.server.observatory.events import What
from dibs.server.ui import sessions, tickets
from tests.servers.binaries import ROOT

WHATS = set(get_args(What.__value__))


def script(name: str) -> str:
    return (files("dibs.server.ui") / "assets" / name).read_text("utf-8")


def part(name: str, pattern: str) -> str:
    """The one place in a script that looks like that."""
    (found,) = re.findall(pattern, script(name), re.DOTALL)
    return str(found)


def words(text: str) -> list[str]:
    return re.findall(r'"(\w+)"', text)


def test_kinds() -> None:
    told = part("filter.js", r"const KINDS = \[(.*?)\n\];")
    assert tuple(re.findall(r'\["(\w+)", "', told)) == KINDS


def test_what_events_are_about() -> None:
    chosen = words(part("views/events.js", r"const WHATS = \[(.*?)\];"))
    assert set(chosen) == WHATS - {"renewed"}, "renewals are not told there"
    ends = words(part("lanes.js", r"const ENDS = new Set\(\[(.*?)\]\)"))
    endings = re.findall(r"(\w+):", part("views/timeline.js", r"const ENDINGS = \{(.*?)\};"))
    assert set(ends) == set(endings) == {"released", "expired", "freed"} <= WHATS


def test_what_takes_all_there_is() -> None:
    base, power = part("statuses.js", r"const MANY = (\d+ \*\* \d+);").split(" ** ")
    assert int(base) ** int(power) == MANY


@pytest.mark.parametrize("path", ["docs/dashboard.md", "src/dibs/server/ui/assets/sign_in.js"])
def test_how_long_a_session_lasts(path: str) -> None:
    told = re.findall(r"(\d+) hours", (ROOT / path).read_text("utf-8"))
    assert [int(each) * 3600 for each in told] == [sessions.LIFETIME]


@pytest.mark.parametrize(
    "path",
    [
        "docs/dashboard.md",
        "docs/serve.md",
        "src/dibs/cli/demo/show.py",
        "src/dibs/cli/serve.py",
        "src/dibs/server/ui/sessions.py",
    ],
)
def test_how_long_a_ticket_is_good_for(path: str) -> None:
    told = re.findall(r"(\d+) minutes", (ROOT / path).read_text("utf-8"))
    assert {int(each) * 60 for each in told} == {tickets.LIFETIME}
