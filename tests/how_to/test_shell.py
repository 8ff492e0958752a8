"""How to take a lock from a shell script."""

import re
import signal

import pytest

from dibs.sync import Client
from tests.cli.processes import end
from tests.how_to.programs import Programs
from tests.pages import blocks
from tests.servers.waiting import wait_until

PAGE = "how-to/shell.md"


def test_commands_take_turns(programs: Programs, client: Client) -> None:
    programs.edit("report.sh", "sleep 2", "until test -e go; do sleep 0.02; done")
    (together,) = re.findall(r"^\$ (dibs run .* wait)$", blocks(PAGE, "console")[1], re.MULTILINE)
    both = programs.start(together)
    wait_until(lambda: client.status("report").waiting, "one waits")
    (programs.folder / "go").touch()
    _, out, err = end(both)
    starts = r"report (\w) starts, with token (\d+)\nreport \1 ends\n"
    (first, low), (second, high) = re.findall(starts, out)
    assert ({first, second}, int(low) < int(high)) == ({"A", "B"}, True)
    assert "waiting for report: held by" in err


def test_a_run_is_skipped(programs: Programs, client: Client) -> None:
    programs.edit("report.sh", "sleep 2", "sleep 0")
    with client.lock("report"):
        assert programs.run("bash once.sh") == "another report runs: skipped\n"
    assert "report C ends\ndone\n" in programs.run("bash once.sh")


@pytest.mark.parametrize(
    ("step", "code", "out"),
    [
        ("sleep 0", 0, ["build", "renewed", "switch", "released"]),
        ("dibs revoke deploy --now --reason 'a test'", 76, ["build", "revoked"]),
        ("kill $$", -signal.SIGTERM, ["build", "released"]),
    ],
    ids=["to its end", "lost", "killed"],
)
def test_a_script_with_steps(
    programs: Programs, client: Client, step: str, code: int, out: list[str]
) -> None:
    programs.edit("deploy.sh", 'echo "build"\nsleep 1', f'echo "build"\n{step}')
    programs.edit("deploy.sh", "sleep 1", "sleep 0")
    ended, printed, _ = end(programs.start("bash deploy.sh"))
    assert (ended, [line.split()[0] for line in printed.splitlines()]) == (code, out)
    assert not client.lock("deploy").locked()


def test_a_script_that_does_not_get_the_lock(programs: Programs, client: Client) -> None:
    programs.edit("deploy.sh", "--wait 10m", "--wait 0.1s")
    with client.lock("deploy"):
        assert end(programs.start("bash deploy.sh"))[:2] == (75, "")
