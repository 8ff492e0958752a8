"""Directories within one that moves: what is said of them holds while all around them goes elsewhere."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from dibs.model import Status
from dibs.server.placing import desk, mover, parting
from dibs.server.placing.documents import HOME, Documents, read_all, write_listing
from dibs.server.placing.listing import Listed, Listing
from dibs.server.placing.parting import put_home
from dibs.server.records import records_for
from dibs.server.records.port import Record, Records
from tests.server.placing.asking import acquired, move, moved, released, until
from tests.server.placing.errands import Astray, errands
from tests.server.placing.test_move import Pair
from tests.server.world import b64


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


def names_at(pair: Pair, place: str) -> list[bytes]:
    """What stands at a store, by its own ledger: guards too."""
    world, backend = pair.servers[0], pair.store(0, place).backend
    page = world.do(lambda: backend.scan(b"", None, 100))
    seen: list[Status] = [each for each in page.items if each.holders or each.waiters]
    return [each.key.removeprefix(b"lock:") for each in seen if each.key.startswith(b"lock:")]


@pytest.mark.once
def test_what_a_rule_or_a_wish_keeps_here_is_not_carried_along(pair: Pair) -> None:
    here, there = pair.clients
    rule = f"/v1/restrict/locks/{b64('eu/in')}/"
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    assert here.get(rule).json()["state"] == "Enforced"
    move(here, "shop", "one")
    held = {name: acquired(here, name) for name in ("eu/in/1", "eu/out", "shop/1", "plain")}
    assert here.put("/v1/move", json={"to": "two"}).status_code == 200
    pair.know(b"", "moving")
    for name in ("eu/in/2", "shop/2"):
        held[name] = acquired(there, name)
    over = acquired(here, "eu/over")
    assert there.get(rule).json()["state"] == "Enforced"
    for name in ("eu/out", "plain"):
        released(there, name, held[name])
    until(lambda: here.get("/v1/move").json()["phase"] == "settled")
    for name in ("eu/in/3", "shop/3"):
        held[name] = acquired(here, name)
    assert names_at(pair, "two") == [b"eu/over"]
    kept = sorted(name.encode() for name in held if name.startswith(("eu/in", "shop")))
    assert sorted(names_at(pair, "one")) == kept
    assert moved(here, "eu/in", "one")
    assert moved(here, "shop", "one")
    assert there.get(rule).json()["state"] == "Enforced"
    lines = here.get("/v1/audit").json()["entries"]
    begun = [each.get("about", "") for each in lines if each["what"] == "move started"]
    assert begun == [""], "nothing else has moved"
    released(here, "eu/over", over)
    for name in ("eu/in/1", "shop/1"):  # as ever
        released(there, name, held[name])
        assert acquired(here, name)["sequencer"] > held[name]["sequencer"]


# ---- movers and an administrator in any order -----------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("most", [2, parting.MOST])
def test_no_order_of_what_movers_read_and_write_takes_a_name_astray(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(parting, "MOST", most)
    phases: set[str] = set()
    for seed in range(60):
        phases |= asyncio.run(errands(seed)).phases
    assert phases == {"settled", "moving", "sealed", "clearing"}


async def test_what_should_be_is_read_after_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    records = records_for(f"memory://{uuid4()}")
    await write_listing(records, Listing((Listed("one", ("at-1",)),), "one", 3.0), 0)
    kinds: list[str] = []
    every = records.all

    async def noted(kind: str) -> Sequence[Record]:
        kinds.append(kind)
        return await every(kind)

    monkeypatch.setattr(records, "all", noted)
    await read_all(records)
    assert kinds[0] == HOME, "or a mover may begin by what was said before, at a version of after"


async def nothing(*_: Any) -> None:
    """What a mistake leaves out."""


async def by_records_of_their_own(
    records: Records, found: Documents, directories: Sequence[bytes]
) -> None:
    """They part without a word in the record of the home that they live in."""
    for each in directories:
        await put_home(records, found, each, found.home_of(each).of_parted)


@pytest.mark.once
@pytest.mark.parametrize(
    ("where", "name", "mistake", "flaw"),
    [
        (mover, "part", nothing, "may not be|is no next step of"),
        (mover, "part", by_records_of_their_own, "is no next step of"),
        (mover, "write_out", nothing, "was forgotten"),
        (desk, "outdate", nothing, "to where it may not be"),
    ],
    ids=["all goes along", "a record each", "forgotten", "movers are not told"],
)
def test_planted_mistakes_lead_astray(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, mistake: object, flaw: str
) -> None:
    monkeypatch.setattr(where, name, mistake)
    with pytest.raises(Astray, match=flaw):
        for seed in range(600):
            asyncio.run(errands(seed))
