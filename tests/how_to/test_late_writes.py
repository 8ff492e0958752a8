"""How to reject late writes: a holder that was paused past its lease writes nothing."""

import signal

import pytest

from dibs.sync import Client
from tests.how_to.programs import Programs, line_with

PAGE = "how-to/late-writes.md"
CHECK = "            fence.check(lease, database)\n"


@pytest.mark.parametrize(
    ("name", "removed", "kept"),
    [
        ("shop.py", "", "packed by: ('bob',)"),
        ("shop.py", CHECK, "packed by: ('alice',)"),
        ("cart.py", "", "paid by: bob"),
        ("report.py", "", "written by bob"),
    ],
    ids=["SQL", "SQL without the check", "Redis", "file"],
)
def test_a_paused_holder_is_too_late(
    name: str, removed: str, kept: str, redis_url: str, programs: Programs, client: Client
) -> None:
    programs.edit(name, removed, "")
    programs.environment["REDIS_URL"] = redis_url
    alice = programs.start(f"python -W error {name} alice")
    lock = line_with("alice holds", alice).split()[2].rstrip(".")
    alice.send_signal(signal.SIGSTOP)  # as Ctrl-Z
    client.revoke(lock, reason="its ttl is over", now=True)
    bob = programs.start(f"python -W error {name} bob")
    assert "bob holds" in bob.communicate("\n", timeout=60)[0]
    alice.send_signal(signal.SIGCONT)  # as fg
    late, last = alice.communicate("\n", timeout=60)[0].splitlines()
    assert last == kept
    assert late.startswith("alice is too late: ")
    assert ("is stale" in late) != bool(removed)
