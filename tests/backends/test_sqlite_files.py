"""The file of a SQLite store as the system has it: its permissions, and links that lead nowhere."""

import logging
from pathlib import Path

import pytest

from dibs import connect
from dibs.errors import NotConfigured
from tests.server.world import World


async def levels(path: Path) -> dict[str, str]:
    async with connect(f"sqlite:///{path}") as client:
        return {each.about: each.level for each in await client.examine()}


@pytest.mark.parametrize(
    ("file", "folder", "level"),
    [(0o600, 0o700, "ok"), (0o660, 0o770, "ok"), (0o666, 0o700, "warning"), (0o604, 0o700, "warning"),
     (0o600, 0o777, "warning"), (0o600, 0o1777, "ok")],
)  # fmt: skip
async def test_doctor_warns_of_a_file_that_others_can_use(
    tmp_path: Path, file: int, folder: int, level: str
) -> None:
    path = tmp_path / "folder" / "leases.db"
    await levels(path)
    path.chmod(file)
    path.parent.chmod(folder)
    assert (await levels(path))["permissions"] == level


def test_serve_warns_of_a_file_that_others_can_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    World.over(tmp_path).close()
    assert "every user of this machine" not in caplog.text
    (tmp_path / "leases.db").chmod(0o666)
    with caplog.at_level(logging.WARNING, "dibs.server"):
        World.over(tmp_path).close()
    assert "leases.db has mode 0666: every user of this machine can use it" in caplog.text


@pytest.mark.parametrize("target", ["nowhere.db", "leases.db"], ids=["dangling", "a loop"])
async def test_a_link_that_leads_nowhere_is_told(tmp_path: Path, target: str) -> None:
    path = tmp_path / "leases.db"
    path.symlink_to(tmp_path / target)
    with pytest.raises(NotConfigured, match=f"a symbolic link to .*{target}, where no file is"):
        await levels(path)
