"""What all guards do: a late write is refused, and would have got in without the guard."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dibs.fencing import StaleToken
from dibs.sync import connect
from tests.fencing.resources import Resource, Sql, resource
from tests.pages import blocks, run

ROOT = Path(__file__).parents[2]
KEY = b"lock:order:42"


@pytest.fixture(params=["sqlite", "postgres", "redis", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    kind: str = request.param
    if kind in ("postgres", "redis"):
        return kind, request.getfixturevalue(f"{kind}_url")
    return kind, str(tmp_path if kind == "file" else tmp_path / "things.db")


@pytest.fixture
def thing(where: tuple[str, str]) -> Iterator[Resource]:
    with closing(resource(*where)) as thing:
        if isinstance(thing, Sql):
            thing.create()
        thing.write_unguarded("nothing")
        yield thing


def test_tokens_may_rise_and_repeat_but_not_fall(thing: Resource) -> None:
    for token in (5, 5, 9, 1_700_000_000_000_000, 2**53 - 2, 2**53 - 1, 2**53 - 1):
        thing.write((KEY, token), f"by {token}")
    with pytest.raises(StaleToken) as caught:
        thing.write((KEY, 2**53 - 2), "late")
    assert (caught.value.token, caught.value.seen, caught.value.key) == (2**53 - 2, 2**53 - 1, KEY)
    assert thing.read()[0] == f"by {2**53 - 1}"


def test_keys_and_slots_are_apart(thing: Resource) -> None:
    thing.write((KEY, 9), "the first slot")
    thing.write((KEY, 2, 1), "another slot")
    thing.write((b"lock:order:4", 1), "another key")
    thing.write((b"lock:order%3A42\x00\xff", 1), "any bytes")
    with pytest.raises(StaleToken, match="slot 1 is stale"):
        thing.write((KEY, 1, 1), "late")
    assert thing.read()[0] == "any bytes"


def test_of_a_lease_every_slot_counts(thing: Resource) -> None:
    with connect("memory://fencing-slots") as client:
        semaphore = client.semaphore("gpu", 3)
        first, both = semaphore.acquire(), semaphore.acquire(units=2)
        thing.write(both, "both")
        thing.write(first, "a lower token, for another slot")
        both.release()
        with semaphore.acquire() as newer:
            assert newer.slots == (1,)
            thing.write(newer, "newer")
        with pytest.raises(StaleToken, match="semaphore gpu, slot 1 is stale"):
            thing.write(both, "late")
        first.release()
    assert thing.read()[0] == "newer"


@pytest.mark.once
@pytest.mark.multiprocess
def test_a_late_write_is_refused_and_would_have_got_in(
    thing: Resource, where: tuple[str, str], tmp_path: Path
) -> None:
    pause_and_write(thing, where, f"sqlite:///{tmp_path}/leases.db")
    assert thing.read() == ("newest", "late"), "without the guard the late write stands"


def pause_and_write(thing: Resource, where: tuple[str, str], store: str) -> None:
    """Write while a holder stands still, and let it write what it was about to."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fencing.paused", store, *where],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as paused:
        try:
            assert paused.stdin is not None
            assert paused.stdout is not None
            held, token = paused.stdout.readline().split()
            assert held == "held"
            os.kill(paused.pid, signal.SIGSTOP)
            with connect(store) as client, client.lock("thing", wait="60s") as lease:
                assert lease.token > int(token)
                thing.write(lease, "newer")
                thing.write_unguarded("newer")
                os.kill(paused.pid, signal.SIGCONT)
                paused.stdin.write("go on\n")
                paused.stdin.flush()
                assert paused.stdout.readline().split() == ["stale", token, str(lease.token)]
                paused.stdin.close()
                assert paused.wait(60) == 0
                thing.write(lease, "newest")
        finally:
            paused.kill()


SERVER = "redis://localhost:6379/0"


def example(about: str) -> str:
    [found] = [block for block in blocks("fencing.md") if about in block]
    return found


@pytest.mark.multiprocess
@pytest.mark.parametrize("about", ["SqlFence", "FileFence"])
def test_an_example_of_the_page_works(about: str, tmp_path: Path) -> None:
    assert re.match(
        r"token \d+ of lock \S+ is stale: the resource has already seen token",
        run(example(about), tmp_path),
    )


@pytest.mark.multiprocess
def test_the_example_for_redis_works(redis_url: str, tmp_path: Path) -> None:
    code = example("RedisFence")
    assert SERVER in code
    told = run(code.replace(SERVER, redis_url), tmp_path)
    assert re.match(
        r"token \d+ of lock cart:42 is stale: the resource has already seen token", told
    )


def test_every_example_of_the_page_is_run() -> None:
    assert len(blocks("fencing.md")) == 3
