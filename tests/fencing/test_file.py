"""The guard for files: replaced at once, in order, whoever dies in between."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import dibs.fencing
import dibs.sync
from dibs import DibsError
from dibs.fencing import FileFence, StaleToken
from dibs.fencing.stamp import stale, stamp_of

KEY = "lock:report"
LARGE = 1 << 16

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.txt"


def test_it_keeps_the_files_mode_and_follows_a_link(path: Path, tmp_path: Path) -> None:
    path.write_text("old")
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    FileFence(link).replace((KEY, 1), "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_block_may_write_as_it_likes_and_others_wait(path: Path) -> None:
    fence, inside, done = FileFence(path), threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        fence.replace((KEY, 9), "newer")
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with fence.guard((KEY, 8)) as file:
        inside.set()
        file.write_text("one")
        assert not done.wait(0.05)
        file.write_text("two")
    thread.join()
    assert path.read_text() == "newer"
    with pytest.raises(StaleToken), fence.guard((KEY, 8)):
        pytest.fail("the block must not begin")
    fence.replace((KEY, 9), "the lock was let go of")


def test_a_fence_that_cant_be_read_lets_nobody_in(path: Path) -> None:
    fence = FileFence(path)
    fence.replace((KEY, 9), "fine")
    Path(f"{path}.fence").write_text("{")
    with pytest.raises(DibsError, match="nobody knows which tokens"):
        fence.replace((KEY, 9), "never")
    assert path.read_text() == "fine"


def _write(path: str, first: int, step: int, ready: Connection) -> None:
    fence, token = FileFence(path), first
    ready.send(first)
    while token < 60:
        with suppress(StaleToken):
            fence.replace((KEY, token), f"{token:>{LARGE}}")
        token += step


@pytest.mark.once
@pytest.mark.multiprocess
def test_what_stands_is_always_whole_and_never_older(path: Path) -> None:
    """Three processes write with tokens of their own, and one of them is killed again and again."""
    pipes, processes = [], []
    for first in (1, 2, 3):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_write, args=(str(path), first, 3, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    highest = 0
    while any(process.is_alive() for process in processes):
        if path.exists():
            content = path.read_bytes()
            assert len(content) == LARGE, "half a file"
            assert int(content) >= highest, "an older write has replaced a newer one"
            highest = int(content)
        if highest > 20:
            processes[0].kill()
    for process, pipe in zip(processes, pipes, strict=True):
        process.join()
        process.close()
        pipe.close()
    assert int(path.read_bytes()) == max(highest, 59)


def _write_for_ever(path: str, first: int, ready: Connection) -> None:
    fence, token = FileFence(path), first
    ready.send(first)
    while True:
        fence.replace((KEY, token), f"{token:>{LARGE}}")
        token += 1


@pytest.mark.once
@pytest.mark.multiprocess
def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_file(path: Path) -> None:
    fence, token = FileFence(path), 1
    for _ in range(2):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_write_for_ever, args=(str(path), token, theirs))
        process.start()
        ours.recv()
        while not path.exists() or int(path.read_bytes()) < token + 3:
            assert process.is_alive()
        process.kill()
        process.join()
        process.close()
        content = path.read_bytes()
        assert len(content) == LARGE
        with pytest.raises(StaleToken) as caught:
            fence.replace((KEY, 1), "late")
        assert caught.value.seen >= int(content), "what stands there was seen"
        token = caught.value.seen
        fence.replace((KEY, token), f"{token:>{LARGE}}")
        ours.close()
        theirs.close()


def test_a_child_forked_meanwhile_keeps_nobody_out(path: Path) -> None:
    fence = FileFence(path)
    with fence.guard((KEY, 1)):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        fence.replace((KEY, 2), b"after it")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert path.read_bytes() == b"after it"


def test_a_lease_has_its_stamp_of_any_kind() -> None:
    with dibs.sync.connect("memory://fencing-stamps") as client:
        with client.lock("a") as lease:
            assert stamp_of(lease) == (b"lock:a", lease.token, (0,))
            assert stamp_of(lease) == stamp_of(("lock:a", lease.token))
        with client.rwlock("a").write() as writer:
            assert stamp_of(writer) == (b"rwlock:a", writer.token, (0,))
        with client.semaphore("a", 4).acquire(units=3) as slots:
            assert stamp_of(slots).slots == (0, 1, 2)
        for shared in (client.rwlock("b").read(), client.semaphore("b", 1025)):
            with shared.acquire() as lease, pytest.raises(TypeError, match="held beside others"):
                stamp_of(lease)


def test_different_keys_have_different_texts() -> None:
    keys = [b"lock:a b", b"lock:a%20b", b"lock:a+b", b"lock:\xff", b"lock:\xc3\xbf", b"lock:%FF"]
    texts = [stamp_of((key, 1)).text for key in keys]
    assert len(set(texts)) == len(keys)
    assert texts[0] == "lock:a b"
    assert all(text.isascii() and text.isprintable() for text in texts)


def test_what_is_no_stamp_is_refused() -> None:
    no_stamps: list[Any] = ["lock:a", 7, None, ("lock:a",), ("", 1), (3, 1), ("a", 1, 2, 3)]
    for wrong in no_stamps:
        with pytest.raises(TypeError, match="lease"):
            stamp_of(wrong)
    no_tokens: list[Any] = [0, -1, 2**53, True, "17", 1.5, None]
    for token in no_tokens:
        with pytest.raises(ValueError, match="the token is"):
            stamp_of(("lock:a", token))
    no_slots: list[Any] = [-1, True, "0", None, 2**31]
    for slot in no_slots:
        with pytest.raises(ValueError, match="the slot is"):
            stamp_of(("lock:a", 1, slot))


def test_the_public_names_are_these() -> None:
    assert dibs.fencing.__all__ == [
        "AsyncRedisFence",
        "AsyncSqlFence",
        "FileFence",
        "RedisFence",
        "SqlFence",
        "StaleToken",
        "Stamped",
    ]
    for name in dibs.fencing.__all__:
        assert getattr(dibs.fencing, name).__doc__ or name == "Stamped"
    loaded = "import sys, dibs.fencing; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert not {"asyncio", "sqlite3", "redis", "psycopg"} & set(done.stdout.split())


def test_the_error_crosses_processes_and_hides_nothing() -> None:
    error = stale(b"lock:\x1b[2J", 3, 7, 9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is StaleToken
    assert (copy.token, copy.seen, copy.key, str(copy)) == (7, 9, error.key, str(error))
    assert "\x1b" not in str(error)
    assert "slot 3" in str(error)
