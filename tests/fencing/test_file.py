"""The guard for files: replaced at once, in order, whoever dies in between."""

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dibs import DibsError
from dibs.fencing import FileFence, StaleToken

KEY = "lock:report"
LARGE = 1 << 16

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.txt"


def test_tokens_may_rise_and_repeat_but_not_fall(path: Path) -> None:
    fence = FileFence(path)
    for token in (5, 5, 9):
        fence.replace((KEY, token), f"by {token}")
    with pytest.raises(StaleToken) as caught:
        FileFence(str(path)).replace((KEY, 8), "late")
    assert (caught.value.token, caught.value.seen) == (8, 9)
    assert path.read_text() == "by 9"
    fence.replace((KEY, 1, 1), b"\xffanother slot")
    fence.replace(("lock:other", 1), "another key")
    assert path.read_text() == "another key"


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
    while token < 150:
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
        if highest > 60:
            processes[0].kill()
    for process, pipe in zip(processes, pipes, strict=True):
        process.join()
        process.close()
        pipe.close()
    assert int(path.read_bytes()) == max(highest, 149)


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
    for _ in range(5):
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
