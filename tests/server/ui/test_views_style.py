"""What the dashboard's style sheets promise: letters that can be read, in light and in dark."""

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import get_args

import pytest

from dibs.core.names import KINDS
from dibs.model import MANY
from dibs.server.auth import sessions
from dibs.server.lock_events import EventType
from tests.servers.binaries import ROOT

ASSETS = files("dibs.server.ui") / "assets"

READABLE = 4.5
"""The contrast that small letters need."""

GROUNDS = ("ground", "surface", "raised")

PAIRS = [
    *[(ink, ground) for ink in ("ink", "soft") for ground in GROUNDS],
    *[(ink, ground) for ink in ("accent", "warn", "bad", "ok", "info") for ground in GROUNDS[:2]],
    *[(ink, f"{ink}-wash") for ink in ("warn", "bad", "ok", "info")],
    ("ink", "warn-wash"),
    ("on-accent", "accent"),
    ("surface", "bad"),
]


def colours() -> tuple[dict[str, str], dict[str, str]]:
    """Of each look."""
    text = (ASSETS / "base.css").read_text("utf-8")
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", text)
    assert len(found) == text.count("light-dark(")
    return {name: light for name, light, _ in found}, {name: dark for name, _, dark in found}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("ink", "ground"), PAIRS)
def test_letters_can_be_read(ink: str, ground: str) -> None:
    for palette in colours():
        one, other = luminance(palette[ink]), luminance(palette[ground])
        contrast = (max(one, other) + 0.05) / (min(one, other) + 0.05)
        assert contrast >= READABLE, f"{palette[ink]} on {palette[ground]}: {contrast:.2f}"


def test_nothing_in_the_files_needs_more_than_the_policy_allows() -> None:
    html = (ASSETS / "index.html").read_text("utf-8")
    assert not re.search(r"<style|<script(?![^>]* src=)|\son[a-z]+=|\sstyle=|https?:", html)
    scripts = [each for each in _all(ASSETS) if each.name.endswith(".js")]
    assert len(scripts) > 15
    for each in scripts:
        text = each.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert len(text.splitlines()) < 300, each.name


def _all(folder: Traversable) -> Iterator[Traversable]:
    for each in folder.iterdir():
        yield from _all(each) if each.is_dir() else [each]


WHATS = set(get_args(EventType.__value__))


def script(name: str) -> str:
    return (files("dibs.server.ui") / "assets" / name).read_text("utf-8")


def part(name: str, pattern: str) -> str:
    """The one place in a script that looks like that."""
    (found,) = re.findall(pattern, script(name), re.DOTALL)
    return str(found)


def words(text: str) -> list[str]:
    return re.findall(r'"(\w+)"', text)


def test_kinds() -> None:
    told = part("address.js", r"const KINDS = \[(.*?)\n\];")
    assert tuple(re.findall(r'\["(\w+)", "', told)) == KINDS


def test_what_events_are_about() -> None:
    chosen = words(part("views/events.js", r"const WHATS = \[(.*?)\];"))
    assert set(chosen) == WHATS - {"renewed"}, "renewals are not told there"
    endings = re.findall(r"(\w+):", part("views/timeline.js", r"const ENDINGS = \{(.*?)\};"))
    assert set(endings) == {"released", "expired", "freed"} <= WHATS


def test_what_takes_all_there_is() -> None:
    base, power = part("status.js", r"const MANY = (\d+ \*\* \d+);").split(" ** ")
    assert int(base) ** int(power) == MANY


@pytest.mark.parametrize("path", ["docs/dashboard.md", "src/dibs/server/ui/assets/session.js"])
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
        "src/dibs/server/auth/sessions.py",
    ],
)
def test_how_long_a_sign_in_link_is_good_for(path: str) -> None:
    told = re.findall(r"(\d+) minutes", (ROOT / path).read_text("utf-8"))
    assert {int(each) * 60 for each in told} == {sessions.LINK_LIFETIME}
