"""How to take a lock from a shell script."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from dibs.sync import Client, connect
from tests.pages import blocks, write_files

PAGE = "how-to/shell.md"

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the store that the scripts use, which are in the current folder."""
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIBS_URL", f"sqlite:///{tmp_path}/leases.db")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with connect(os.environ["DIBS_URL"]) as client:
        yield client


def script(name: str) -> "Popen[str]":
    return Popen(["bash", name], stdout=PIPE, stderr=PIPE, text=True)


def test_commands_take_turns(client: Client, tmp_path: Path) -> None:
    (together,) = re.findall(r"^\$ (dibs run .* wait)$", blocks(PAGE, "console")[1], re.MULTILINE)
    with Popen(["bash", "-c", together], stdout=PIPE, stderr=PIPE, text=True) as shell:
        out, err = shell.communicate(timeout=60)
    starts = r"report (\w) starts, with token (\d+)\nreport \1 ends\n"
    (first, low), (second, high) = re.findall(starts, out)
    assert ({first, second}, int(low) < int(high)) == ({"A", "B"}, True)
    assert "waiting for report: held by" in err


def test_a_run_is_skipped(client: Client) -> None:
    with client.lock("report"), script("once.sh") as skipped:
        assert skipped.communicate(timeout=60) == ("another report runs: skipped\n", "")
    with script("once.sh") as done:
        assert "report C ends\ndone\n" in done.communicate(timeout=60)[0]


@pytest.mark.parametrize(
    ("step", "code", "out"),
    [
        ("sleep 0", 0, ["build", "renewed", "switch", "released"]),
        ("dibs revoke deploy --now --reason 'a test'", 76, ["build", "revoked"]),
        ("kill $$", -signal.SIGTERM, ["build", "released"]),
    ],
    ids=["to its end", "lost", "killed"],
)
def test_a_script_with_steps(client: Client, step: str, code: int, out: list[str]) -> None:
    deploy = Path("deploy.sh")
    deploy.write_text(deploy.read_text().replace("sleep 1", step, 1))
    with script("deploy.sh") as steps:
        lines = steps.communicate(timeout=60)[0].splitlines()
    assert (steps.returncode, [line.split()[0] for line in lines]) == (code, out)
    assert not client.lock("deploy").locked()


def test_a_script_that_does_not_get_the_lock(client: Client) -> None:
    deploy = Path("deploy.sh")
    deploy.write_text(deploy.read_text().replace("--wait 10m", "--wait 0.1s"))
    with client.lock("deploy"), script("deploy.sh") as late:
        assert late.communicate(timeout=60)[0] == ""
    assert late.returncode == 75
