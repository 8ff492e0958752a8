"""The Python reference of the site has every public name."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import dibs

PAGES = Path(__file__).parents[2] / "docs/reference"


@pytest.mark.parametrize(
    "module", ["dibs", "dibs.fencing", "dibs.tasks", "dibs.temporal", "dibs.testing"]
)
def test_every_public_name_is_described(module: str) -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES.glob("*.md"))
    described = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    own = import_module(module)
    wanted = {
        f"{module}.{name}"
        for name in own.__all__
        if own is dibs or getattr(own, name) is not getattr(dibs, name, None)
    }
    assert wanted - described == set()
