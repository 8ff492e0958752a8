"""The examples of the page about configuration, as they stand there; and it leaves no setting out."""

from pathlib import Path

import pytest

from dibs.config import READERS
from dibs.primitives import election_config, tasklock
from dibs.settings_file import STORE_KEYS
from tests.pages import DOCS, blocks, run

PAGE = "configuration.md"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "as it is set"), (1, "in two stores, with token"), (2, "about a microsecond")],
)
def test_an_example_works(number: int, told: str, tmp_path: Path) -> None:
    file = tmp_path / "dibs.toml"
    (toml,) = blocks(PAGE, "toml")
    file.write_text(toml, "utf-8")
    settings = {"DIBS_CONFIG": str(file), "DIBS_LOCK__CART__WAIT": "3s"}
    assert told in run(blocks(PAGE)[number], tmp_path, **settings)


def test_every_example_is_tried() -> None:
    assert len(blocks(PAGE)) == 3


@pytest.mark.parametrize(
    "key", sorted({*READERS, *election_config.READERS, *tasklock.READERS, *STORE_KEYS})
)
def test_every_setting_is_told(key: str) -> None:
    page = (DOCS / PAGE).read_text("utf-8")
    table = page.partition("## Settings")[2].partition("## Stores")[0]
    assert f"`{key}`" in table
