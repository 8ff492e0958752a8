"""The examples of the page about configuration, as they stand there; and it leaves no setting out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.config import READERS
from leasehold.primitives import election_config, tasklock
from leasehold.settings_file import STORE_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "as it is set"), (1, "in two stores, with token"), (2, "about a microsecond")],
)
def test_an_example_works(number: int, told: str, tmp_path: Path) -> None:
    file = tmp_path / "leasehold.toml"
    (toml,) = blocks("toml")
    file.write_text(toml, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks("python")[number]],
        env={"LEASEHOLD_CONFIG": str(file), "LEASEHOLD_LOCK__CART__WAIT": "3s"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    assert not done.stderr


def test_every_example_is_tried() -> None:
    assert len(blocks("python")) == 3


@pytest.mark.parametrize(
    "key", sorted({*READERS, *election_config.READERS, *tasklock.READERS, *STORE_KEYS})
)
def test_every_setting_is_told(key: str) -> None:
    table = PAGE.partition("## Settings")[2].partition("## Stores")[0]
    assert f"`{key}`" in table
