"""The transfers of docs/how-to/transfer.md."""

import sys
from pathlib import Path

import pytest

from tests.how_to.programs import LONG, Programs, printed

PYTHON = (sys.executable, "-W", "error")


@pytest.mark.multiprocess
def test_transfers_at_the_same_time_and_a_late_one(tmp_path: Path) -> None:
    with Programs("how-to/transfer.md", tmp_path) as bank:
        there = bank.start(*PYTHON, "bank.py", "alice", "bob", "30")
        back = bank.start(*PYTHON, "bank.py", "bob", "alice", "10")
        assert "alice 80 bob 120\n" in (printed(there), printed(back))
        late = bank.start(*PYTHON, "late.py")
        refusal, balance = late.communicate(timeout=LONG)[0].splitlines()
        assert refusal.endswith("leave the rest of the work to that holder")
        assert "account:alice is stale" in refusal
        assert balance == "alice 70"

        told = bank.run(*PYTHON, "deadlock.py")
        assert "transferred from " in told
        assert "holds account:alice and waits for account:bob" in told
        assert "holds account:bob and waits for account:alice" in told
