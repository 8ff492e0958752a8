"""One process of the torture, with several tasks or threads."""

import asyncio
from pathlib import Path

import pytest

from dibs.testing.torture import worker as working
from dibs.testing.torture.contender import Contender
from dibs.testing.torture.orders import Orders
from dibs.testing.torture.plan import PRIMITIVES, SIDES, names_of
from dibs.testing.torture.turns import Turns
from dibs.testing.torture.worker import TortureWorker


@pytest.fixture(params=SIDES)
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> TortureWorker:
    return TortureWorker(
        Orders(
            number=0,
            side=request.param,
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


def run(worker: TortureWorker) -> None:
    if worker.orders.side == "asyncio":
        asyncio.run(working.run_async(worker))
    else:
        working.run_blocking(worker)


def test_a_hand_that_fails_ends_its_process(
    worker: TortureWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Turns.take

    async def fails(turns: Turns, contender: Contender) -> None:
        if contender is worker.contenders[-1]:
            raise RuntimeError("planted")
        await take(turns, contender)

    monkeypatch.setattr(Turns, "take", fails)
    with pytest.raises(RuntimeError, match="planted"):
        run(worker)
