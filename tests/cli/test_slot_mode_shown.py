"""Slots that workflows hold in Temporal without the broker: how they are told of."""

from dataclasses import replace

from dibs.cli.listing import _row
from dibs.cli.output import holder_shape
from dibs.cli.revoke import _told
from dibs.cli.show import _lines
from dibs.model import Holder, Status
from dibs.primitives.telling import contention

PERMIT = Holder("", "permit:n4:0", 0, 1, (0,), 3.0, 15.0, note="of the workflow w-1", state="kept")
POOL = Status(b"semaphore:n4", capacity=4, holders=(PERMIT,))


def test_it_is_kept_for_whom_and_nobody_knows_for_how_long() -> None:
    assert _lines(POOL)[1] == "  kept for slot mode's permit:n4:0 (of the workflow w-1)"
    assert _row(POOL)[3] == ""
    shape = holder_shape(PERMIT)
    assert (shape["state"], shape["owner"], shape["expires_in"]) == ("kept", "permit:n4:0", None)
    assert "kept for slot mode's permit:n4:0" in contention(b"semaphore:n4", (PERMIT,), None)


def test_units_that_are_kept_closed_end() -> None:
    closed = replace(PERMIT, owner="")
    assert "kept closed for another 15 s" in _lines(replace(POOL, holders=(closed,)))[1]
    assert holder_shape(closed)["expires_in"] == 15.0


def test_a_revoke_that_finds_only_such_tells_what_to_do() -> None:
    assert "temporal workflow cancel --workflow-id ID" in _told(POOL, 0, 0.0)
    assert _told(POOL, 0, 0.0).endswith("permit:n4:0")
    assert _told(replace(POOL, holders=()), 0, 0.0) == "n4 is not held"
