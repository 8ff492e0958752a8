"""The audit: what stands in it, who may read it, and that it says nothing secret."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable
from dibs.server import audit as audit_module
from dibs.server.audit import DENIED_ALL, DENIED_EACH, WINDOW, Audit, common_directory
from dibs.server.auth.api_key import NewKey
from dibs.server.auth.keys import KeyAdmin, KeyService
from dibs.server.auth.policy import EVERYTHING, Principal, Scope, with_implied
from dibs.server.records import records_for
from dibs.server.records.port import Records
from dibs.testing import ManualClock
from tests.server.test_records_away import away
from tests.server.world import LONG


def principal(name: str, scope: Scope = Scope.ADMIN, *prefixes: bytes) -> Principal:
    return Principal(f"id-{name}", name, with_implied({scope}), prefixes or EVERYTHING)


ROOT = principal("root")
SHOP = principal("shop", Scope.ADMIN, b"shop/")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    records = records_for(f"sqlite:///{tmp_path}/records.db")
    await records.open()
    yield records
    await records.close()


@pytest.fixture
def audit(records: Records, clock: ManualClock) -> Audit:
    return Audit(records, clock)


@pytest.fixture
async def ring(records: Records, clock: ManualClock) -> AsyncIterator[KeyService]:
    ring = KeyService(records, clock)
    await ring.cache.load()
    yield ring
    await ring.cache.close()


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


async def test_a_detail_that_is_too_long_is_left_out(audit: Audit) -> None:
    await audit.write(ROOT, "restriction set", b"shop/", {"long": "x" * 100_000})
    (line,) = (await audit.page(ROOT)).entries
    assert line.name == "shop/"
    assert "long" not in line.detail
    assert line.detail["left_out"]


async def test_a_line_that_cannot_be_read_is_shown_as_such(audit: Audit, records: Records) -> None:
    no_line = b'{"at":1,"what":"a","key":"","who":"","about":"?"}'
    for garbage in (b"", b"\xff", b"[]", b'{"at":"x"}', no_line):
        await records.append(garbage)
    page = await audit.page(ROOT)
    assert [line.what for line in page.entries] == ["unreadable"] * 5
    assert (await audit.page(SHOP)).entries == []


async def denied(audit: Audit, who: Principal, tried: str) -> bool:
    """Whether a refusal is written, once all that waited are."""
    may = audit.deny(who, tried)
    async with asyncio.timeout(LONG):
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


async def test_a_refusal_is_counted_while_the_records_are_away(
    audit: Audit, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "append", away)
        assert audit.deny(SHOP, "x")
        with pytest.raises(BackendUnavailable):
            await audit._write_refusal()
        with pytest.raises(BackendUnavailable):
            await audit.write(SHOP, "force release", b"shop/a")
    assert await denied(audit, SHOP, "y")
    (line,) = (await audit.page(ROOT)).entries
    assert line.detail == {"tried": "y", "left_out": 1}


async def test_a_key_that_cannot_be_recorded_is_not_given_out(
    ring: KeyService, audit: Audit, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "append", away)
    with pytest.raises(BackendUnavailable):
        await KeyAdmin(ring, audit).create(ROOT, NewKey("ci", (Scope.READ,)))
    assert ring.living() == []


def test_what_is_done_to_a_key_is_about_the_directory_of_all_of_its_own() -> None:
    assert common_directory((b"",)) == b""
    assert common_directory((b"shop/",)) == b"shop/"
    assert common_directory((b"shop/a/", b"shop/ab/", b"shop/b/")) == b"shop/"
    assert common_directory((b"shop/", b"shopping/")) == b""


async def test_old_lines_go(records: Records, clock: ManualClock) -> None:
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
    assert found == ["key revoked", "unreadable"], "lines go in their order"


async def test_lines_of_a_key_with_many_go_first(
    records: Records, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "TRIMMED", 7)
    audit = Audit(records, clock, most=30)
    for n in range(60):
        await audit.write(SHOP if n % 20 else ROOT, "restriction set", b"shop/", {"n": n})
    await audit.trim()
    kept = [(line.who, line.detail["n"]) for line in (await audit.page(ROOT)).entries]
    assert [n for who, n in kept if who == "root"] == [40, 20, 0]
    assert [n for who, n in kept if who == "shop"] == [n for n in range(59, 31, -1) if n % 20]
