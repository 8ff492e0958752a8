"""`multiprocessing` by fork, forkserver and spawn: children share nothing with their parent."""

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.locks.requests import DRAWN
from tests.runtime.counting import CHILDREN, TURNS
from tests.runtime.real_stores import SHARED, url_of
from tests.runtime.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]


WAYS = [
    pytest.param(kind, method, marks=() if kind == "sqlite" else pytest.mark.long)
    for kind in SHARED
    for method in multiprocessing.get_all_start_methods()
]


@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "method"), WAYS)
def test_children_take_turns_and_hold_nothing_of_their_parents(
    kind: str, method: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.runtime.counting",
            method,
        ],
        cwd=ROOT,
        env=os.environ | {"DIBS_URL": url, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, after = map(json.loads, done.stdout.splitlines())
    assert told["count"] == CHILDREN * TURNS
    assert told["codes"] == [0] * CHILDREN
    pid, owner = told["parent"]
    assert owner == str(pid)
    tokens = [token for child in told["told"] for token in child[2]]
    assert len(set(tokens)) == CHILDREN * TURNS
    assert len({child[0] for child in told["told"]} - {pid}) == CHILDREN
    for child, owners, _, fates in told["told"]:
        assert owners == [str(child)]
        assert fates == ([["closed", False]] if method == "fork" else [])
    assert after == [True, True, False], "the parent's lease outlived them"


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


WORLDS: Any = [dibs, dibs.sync]


@pytest.mark.parametrize("world", WORLDS)
def test_a_client_can_not_be_sent(world: Any) -> None:
    client = world.connect("memory://")
    for thing in (client, client.lock("a"), client.semaphore("a", 2), client.rwlock("a").write()):
        for send in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"connect\(url\) there"):
                send(thing)


@pytest.mark.parametrize("world", WORLDS)
def test_what_names_no_client_can_be_sent(world: Any) -> None:
    for thing in (
        world.Lock("a", ttl=7),
        world.Semaphore("a", 2),
        world.RWLock("a"),
        world.TaskLock("a", 1, 2),
    ):
        sent = pickle.loads(pickle.dumps(thing))
        assert (type(sent), sent.key) == (type(thing), thing.key)
        assert getattr(sent, "config", None) == getattr(thing, "config", None)


def test_a_lease_can_not_be_sent() -> None:
    with (
        dibs.sync.connect("memory://sent") as client,
        client.lock("a") as lease,
        pytest.raises(TypeError, match=r"send lease\.detach\(\)"),
    ):
        pickle.dumps(lease)
