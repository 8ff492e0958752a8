"""What the dashboard's style sheets promise: letters that can be read, in light and in dark."""

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest

ASSETS = files("dibs.server.ui") / "assets"

READABLE = 4.5
"""The contrast that small letters need."""

GROUNDS = ("ground", "surface", "raised")

PAIRS = [
    *[(ink, ground) for ink in ("ink", "soft") for ground in GROUNDS],
    *[(ink, ground) for ink in ("accent", "warn", "bad", "ok", "told") for ground in GROUNDS[:2]],
    *[(ink, f"{ink}-wash") for ink in ("warn", "bad", "ok", "told")],
    ("ink", "warn-wash"),
    ("on-accent", "accent"),
    ("surface", "bad"),
]


def colours() -> tuple[dict[str, str], dict[str, str]]:
    text = (ASSETS / "base.css").read_text("utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", each)) for each in _halves(text)
    )
    return light, light | dark


def _halves(text: str) -> tuple[str, str]:
    before, _, after = text.partition("@media (prefers-color-scheme: dark)")
    return before, after


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
    assert len(scripts) > 20
    for each in scripts:
        text = each.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert len(text.splitlines()) < 250, each.name


def _all(folder: Traversable) -> Iterator[Traversable]:
    for each in folder.iterdir():
        yield from _all(each) if each.is_dir() else [each]
