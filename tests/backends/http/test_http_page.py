"""The examples of the page about `https://`, as they stand there; and it leaves no option out."""

from pathlib import Path

import pytest

from leasehold.backends.http.apikey import FILE_VARIABLE, VARIABLE
from leasehold.backends.http.url import OPTIONS
from tests.backends.http.serving import Served
from tests.pages import DOCS, blocks, run

PAGE = "https.md"
TOLD = ("order 42 is paid, with token ", "slot 0 is ours\nlatency ")


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", range(2))
def test_an_example_works(number: int, served: Served, tmp_path: Path) -> None:
    key = served.world.key("acquire", prefixes=[b"jobs/"])
    settings = {"LEASEHOLD_URL": served.world.url, VARIABLE: key}
    assert run(blocks(PAGE)[number], tmp_path, **settings).startswith(TOLD[number])


def test_every_example_is_tried() -> None:
    assert len(blocks(PAGE)) == len(TOLD)


@pytest.mark.parametrize("word", [*(f"{option}=" for option in OPTIONS), VARIABLE, FILE_VARIABLE])
def test_every_option_is_told(word: str) -> None:
    assert word in (DOCS / PAGE).read_text("utf-8")
