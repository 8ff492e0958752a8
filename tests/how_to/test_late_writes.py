"""How to reject late writes: a holder that was paused past its lease writes nothing."""

import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.pages import write_files

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


@pytest.mark.parametrize(
    ("name", "removed", "kept"),
    [
        ("shop.py", "", "packed by: ('bob',)"),
        ("shop.py", "fence.check", "packed by: ('alice',)"),
        ("cart.py", "", "paid by: bob"),
        ("report.py", "", "written by bob"),
    ],
    ids=["SQL", "SQL without the check", "Redis", "file"],
)
def test_a_paused_holder_is_too_late(
    name: str, removed: str, kept: str, redis_url: str, tmp_path: Path
) -> None:
    write_files("how-to/late-writes.md", tmp_path)
    program = tmp_path / name
    lines = program.read_text().splitlines(keepends=True)
    program.write_text("".join(line for line in lines if not removed or removed not in line))
    env = {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db", "REDIS_URL": redis_url}

    def started(who: str) -> "Popen[str]":
        command = [sys.executable, "-W", "error", name, who]
        return Popen(
            command, cwd=tmp_path, env=env, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )

    alice = started("alice")
    with alice:
        try:
            assert alice.stdout is not None
            assert "alice holds" in alice.stdout.readline()
            alice.send_signal(signal.SIGSTOP)  # as Ctrl-Z
            with started("bob") as bob:
                assert "bob holds" in bob.communicate("\n", timeout=60)[0]
            alice.send_signal(signal.SIGCONT)  # as fg
            late, last = alice.communicate("\n", timeout=60)[0].splitlines()
        finally:
            alice.kill()
    assert last == kept
    assert late.startswith("alice is too late: ")
    assert ("is stale" in late) != bool(removed)
