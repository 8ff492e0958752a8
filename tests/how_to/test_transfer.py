"""The transfers of docs/how-to/transfer.md."""

from tests.cli.processes import end
from tests.how_to.programs import Programs, printed

PAGE = "how-to/transfer.md"
BANK = "python -W error bank.py"


def test_transfers_at_the_same_time_and_a_late_one(programs: Programs) -> None:
    there = programs.start(f"{BANK} alice bob 30")
    back = programs.start(f"{BANK} bob alice 10")
    assert "alice 80 bob 120\n" in (printed(there), printed(back))
    _, out, _ = end(programs.start("python -W error late.py"))
    refusal, balance = out.splitlines()
    assert refusal.endswith("leave the rest of the work to that holder")
    assert "account:alice is stale" in refusal
    assert balance == "alice 70"

    told = programs.run("python -W error deadlock.py")
    assert "transferred from " in told
    assert "holds account:alice and waits for account:bob" in told
    assert "holds account:bob and waits for account:alice" in told
