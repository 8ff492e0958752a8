"""`multiprocessing` by fork, forkserver and spawn: children share nothing with their parent."""

import copy
import json
import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.locks.requests import DRAWN
from tests.runtime.counting import CHILDREN, TURNS
from tests.runtime.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_children_take_turns_under_a_lock_of_their_parents(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite:///{tmp_path / 'leases.db'}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    (line,) = run_script(f"from tests.runtime.counting import main; main({method!r})")
    told = json.loads(line)
    assert told["count"] == CHILDREN * TURNS
    assert told["codes"] == [0] * CHILDREN
    pids, owners, tokens = zip(*told["told"], strict=True)
    assert len({*pids, told["parent"]}) == CHILDREN + 1
    assert owners == tuple([str(pid)] for pid in pids)
    assert len({token for each in tokens for token in each}) == CHILDREN * TURNS


@pytest.mark.multiprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_no_two_processes_draw_the_same_id() -> None:
    """Ids are drawn many at a time, and what is left of them is not a child's to use."""
    lines = run_script(
        """
        import os
        from dibs.locks.requests import DRAWN, new_id

        new_id()
        for child in range(3):
            if os.fork() == 0:
                print(*(new_id() for _ in range(DRAWN)), flush=True)
                os._exit(0)
            os.wait()
        print(*(new_id() for _ in range(DRAWN)))
        """
    )
    ids = [each for line in lines for each in line.split()]
    assert len(ids) == len(set(ids)) == 4 * DRAWN


def test_what_names_no_client_can_be_sent() -> None:
    for thing in (
        dibs.Lock("a", ttl=7),
        dibs.sync.Semaphore("a", 2),
        dibs.RWLock("a"),
        dibs.sync.TaskLock("a", 1, 2),
    ):
        sent = pickle.loads(pickle.dumps(thing))
        assert (type(sent), sent.key) == (type(thing), thing.key)
        assert getattr(sent, "config", None) == getattr(thing, "config", None)
    with dibs.sync.connect("memory://sent") as client, client.lock("a") as lease:
        for unsendable in (client, client.lock("a"), client.rwlock("a").write()):
            for send in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match=r"connect\(url\) there"):
                    send(unsendable)
        with pytest.raises(TypeError, match=r"send lease\.detach\(\)"):
            pickle.dumps(lease)
