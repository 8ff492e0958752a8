"""One process of the torture, with several tasks or threads."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dibs.testing import check, check_liveness, read
from dibs.testing.torture import worker as working
from dibs.testing.torture.board import Board
from dibs.testing.torture.hands import Hand
from dibs.testing.torture.orders import Orders
from dibs.testing.torture.plan import PRIMITIVES, names_of
from dibs.testing.torture.turns import Turns
from dibs.testing.torture.worker import Worker
from dibs.testing.torture.worlds import WORLDS

TURNS = 90


@pytest.fixture(params=WORLDS)
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Worker:
    return Worker(
        Orders(
            number=0,
            world=request.param,
            seed=1,
            url=f"memory://{tmp_path.name}",
            prefix="t/",
            tasks=3,
            names=names_of(dict.fromkeys(PRIMITIVES, 1)),
            ttl=0.4,
            wait=5.0,
            folder=str(tmp_path),
            parent=0,
        )
    )


def run(worker: Worker) -> None:
    if worker.orders.world == "asyncio":
        asyncio.run(working.run_async(worker))
    else:
        working.run_blocking(worker)


def test_all_hands_take_turns_until_it_is_told_to_stop(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(tmp_path / "board")
    holds, seen = worker.holds, set[str]()

    def watched(*about: Any, **more: Any) -> None:
        holds(*about, **more)
        seen.update(board.held(0))
        if board.cycles(0) >= TURNS:
            worker.stopping = True

    monkeypatch.setattr(worker, "holds", watched)
    run(worker)
    history = read(worker.orders.history)
    holders = {event.lease for event in history if event.what == "granted"}
    calls = {(event.process, event.invoked) for event in history if event.what == "granted"}
    assert TURNS <= board.cycles(0) == len(calls) < TURNS + 3
    assert seen == set(PRIMITIVES)
    assert board.held(0) == ()
    assert check(history) == []
    assert check_liveness(history, 5.0) == []
    held = {event.lease: event.at for event in history if event.what == "granted"}
    ends = {event.lease: event.at for event in history if event.what == "releasing"}
    assert any(held[one] < held[other] < ends[one] for one in holders for other in holders), (
        "they never held at the same time"
    )
    board.close()


def test_a_hand_that_fails_ends_its_process(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Turns.take

    async def fails(turns: Turns, hand: Hand) -> None:
        if hand is worker.hands[-1]:
            raise RuntimeError("planted")
        await take(turns, hand)

    monkeypatch.setattr(Turns, "take", fails)
    with pytest.raises(RuntimeError, match="planted"):
        run(worker)
