"""The audit: what stands in it, who may read it, and how it is bounded."""

import pytest

from dibs.errors import BackendUnavailable
from dibs.server import audit as audit_module
from dibs.server.audit import DENIED_ALL, DENIED_EACH, WINDOW, Audit
from dibs.server.auth.api_key import NewKey
from dibs.server.auth.keys import KeyAdmin, KeyService
from dibs.server.auth.policy import EVERYTHING, Principal, Scope, with_implied
from dibs.server.records.port import Records
from dibs.testing import ManualClock
from tests.server.world import Patch, away


def principal(name: str, scope: Scope = Scope.ADMIN, *prefixes: bytes) -> Principal:
    return Principal(f"id-{name}", name, with_implied({scope}), prefixes or EVERYTHING)


ROOT = principal("root")
SHOP = principal("shop", Scope.ADMIN, b"shop/")


@pytest.fixture
def audit(records: Records, clock: ManualClock) -> Audit:
    return Audit(records, clock)


async def test_pages_newest_first(audit: Audit) -> None:
    """A page without anything to see is not the last."""
    for each in range(7):
        await audit.write(ROOT, "signed in", b"other/" if each else b"shop/", {"n": each})
    for who, wanted in ((ROOT, [6, 5, 4, 3, 2, 1, 0]), (SHOP, [0])):
        read, before, pages = list[object](), None, 0
        while not pages or before is not None:
            page = await audit.page(who, before, 3)
            read += [line.detail["n"] for line in page.entries]
            before, pages = page.next, pages + 1
        assert (read, pages) == (wanted, 3)


async def denied(audit: Audit, who: Principal, tried: str) -> bool:
    may = audit.deny(who, tried)
    while not audit._refusals.empty():
        await audit._write_refusal()
    return may


async def test_refusals_are_written_at_a_bounded_rate(audit: Audit, clock: ManualClock) -> None:
    reader = principal("reader", Scope.READ)
    written = [await denied(audit, reader, "DELETE /v1/keys/x") for _ in range(DENIED_EACH * 3)]
    assert written == [True] * DENIED_EACH + [False] * DENIED_EACH * 2
    others = [principal(f"k{each}", Scope.READ) for each in range(DENIED_ALL)]
    assert [await denied(audit, who, "x") for who in others].count(True) == DENIED_ALL - DENIED_EACH
    clock.advance(WINDOW + 1)
    assert await denied(audit, reader, "DELETE /v1/keys/x")
    assert await denied(audit, others[0], "GET /v1/audit")
    lines = (await audit.page(ROOT, None, 1000)).entries
    assert len(lines) == DENIED_ALL + 2
    assert [line.detail["tried"] for line in lines[:2]] == ["GET /v1/audit", "DELETE /v1/keys/x"]
    assert sum(line.detail.get("left_out", 0) for line in lines) == DENIED_EACH * 3


async def test_what_cannot_be_recorded_is_counted_or_not_done(
    audit: Audit, records: Records, clock: ManualClock, monkeypatch: Patch
) -> None:
    ring = KeyService(records, clock)
    await ring.cache.load()
    with monkeypatch.context() as patch:
        patch.setattr(records, "append", away)
        assert audit.deny(SHOP, "x")
        for call in (
            audit._write_refusal(),
            audit.write(SHOP, "force release", b"shop/a"),
            KeyAdmin(ring, audit).create(ROOT, NewKey("ci", (Scope.READ,))),
        ):
            with pytest.raises(BackendUnavailable):
                await call
    assert ring.living() == []
    assert await denied(audit, SHOP, "y")
    (line,) = (await audit.page(ROOT)).entries
    assert line.detail == {"tried": "y", "left_out": 1}
    await ring.cache.close()


async def test_old_lines_go_in_their_order(
    records: Records, clock: ManualClock, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(audit_module, "TRIMMED", 2)
    audit = Audit(records, clock, keep=1000.0)
    for _ in range(3):
        await audit.write(ROOT, "key created")
    await records.append(b"what a newer release wrote")
    clock.advance(600)
    await audit.write(ROOT, "key revoked")
    await audit.trim()
    assert len((await audit.page(ROOT)).entries) == 5
    clock.advance(600)
    await audit.trim()
    found = [each.what for each in (await audit.page(ROOT)).entries]
    assert found == ["key revoked", "unreadable"]


async def test_lines_of_a_key_with_many_go_first(
    records: Records, clock: ManualClock, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(audit_module, "TRIMMED", 7)
    audit = Audit(records, clock, most=30)
    for n in range(60):
        await audit.write(SHOP if n % 20 else ROOT, "restriction set", b"shop/", {"n": n})
    await audit.trim()
    kept = [(line.who, line.detail["n"]) for line in (await audit.page(ROOT)).entries]
    assert [n for who, n in kept if who == "root"] == [40, 20, 0]
    assert [n for who, n in kept if who == "shop"] == [n for n in range(59, 31, -1) if n % 20]
