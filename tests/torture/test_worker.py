"""One process of the torture, with several tasks or threads."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import check, read
from leasehold.testing.torture import worker as working
from leasehold.testing.torture.board import HOLDING, IDLE, Board
from leasehold.testing.torture.orders import Orders
from leasehold.testing.torture.worker import Worker

TURNS = 60


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(
        Orders(
            number=0,
            seed=1,
            url=f"memory://{tmp_path.name}",
            prefix="t/",
            tasks=3,
            names={"lock-1": 1, "lock-2": 1, "semaphore-1": 2},
            ttl=1.0,
            wait=5.0,
            folder=str(tmp_path),
            parent=0,
        )
    )


def run(worker: Worker, mode: str) -> None:
    if mode == "tasks":
        asyncio.run(working.run_async(worker))
    else:
        working.run_blocking(worker)


@pytest.mark.parametrize("mode", ["tasks", "threads"])
def test_all_hands_take_turns_until_it_is_told_to_stop(
    worker: Worker, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(tmp_path / "board")
    holds, seen = worker.holds, set[int]()

    def watched(change: int, **more: int) -> None:
        holds(change, **more)
        seen.add(board.state(0))
        if board.cycles(0) >= TURNS:
            worker.stopping = True

    monkeypatch.setattr(worker, "holds", watched)
    run(worker, mode)
    history = read(worker.orders.history)
    holders = {event.lease for event in history if event.what == "granted"}
    assert TURNS <= board.cycles(0) == len(holders) < TURNS + 3
    assert seen == {IDLE, HOLDING}
    assert board.state(0) == IDLE
    assert check(history) == []
    held = {event.lease: event.at for event in history if event.what == "granted"}
    ends = {event.lease: event.at for event in history if event.what == "releasing"}
    assert any(held[one] < held[other] < ends[one] for one in holders for other in holders), (
        "they never held at the same time"
    )
    board.close()


@pytest.mark.parametrize("mode", ["tasks", "threads"])
def test_a_hand_that_fails_ends_its_process(
    worker: Worker, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn: Any = working._async_turn if mode == "tasks" else working._turn

    def fails(hand: object, wanted: object) -> Any:
        if hand is worker.hands[-1]:
            raise RuntimeError("planted")
        return turn(hand, wanted)

    monkeypatch.setattr(working, turn.__name__, fails)
    with pytest.raises(RuntimeError, match="planted"):
        run(worker, mode)
