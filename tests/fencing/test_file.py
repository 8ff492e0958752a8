"""The guard for files: replaced at once, in order, whoever dies in between; and what a stamp is."""

import os
import pickle
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dibs.sync
from dibs import DibsError
from dibs.fencing import FileFence, StaleToken
from dibs.fencing.stamp import stale, stamp_of
from tests.stores.sides import forked

KEY = "lock:report"
LARGE = 1 << 16


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


@pytest.mark.once
@pytest.mark.multiprocess
def test_what_stands_is_always_whole_and_never_older(path: Path) -> None:
    """Four processes write with tokens of their own, and two are killed while they do."""

    def write(first: int) -> None:
        fence = FileFence(path)
        for token in range(first, 60, 4):
            with suppress(StaleToken):
                fence.replace((KEY, token), f"{token:>{LARGE}}")
            time.sleep(0.005)  # let the others in
        if first < 3:
            signal.pause()  # it is killed, however late

    writers = [forked(partial(write, first)) for first in (1, 2, 3, 4)]
    doomed, highest = {20: writers[0], 40: writers[1]}, 0
    while highest < 55:
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            assert len(content) == LARGE, "half a file"
            assert int(content) >= highest, "an older write has replaced a newer one"
            highest = int(content)
        for level in [level for level in doomed if level < highest]:
            os.kill(doomed.pop(level), signal.SIGKILL)
        time.sleep(0.002)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in writers]
    assert ends == [-signal.SIGKILL] * 2 + [0] * 2
    with pytest.raises(StaleToken) as caught:
        FileFence(path).replace((KEY, 1), "late")
    assert caught.value.seen >= int(path.read_bytes()) >= highest, "what stands there was seen"


def test_a_child_forked_meanwhile_keeps_nobody_out(path: Path) -> None:
    fence = FileFence(path)
    with fence.guard((KEY, 1)):
        child = forked(signal.pause)
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
    assert all(text.isascii() and text.isprintable() for text in texts)


def test_what_is_no_stamp_is_refused() -> None:
    wrong: Any
    for wrong in ("lock:a", None, ("lock:a",), ("", 1), (3, 1), ("a", 1, 2, 3)):
        with pytest.raises(TypeError, match="lease"):
            stamp_of(wrong)
    for wrong in (0, 2**53, True, "17"):
        with pytest.raises(ValueError, match="the token is"):
            stamp_of(("lock:a", wrong))
    for wrong in (-1, True, "0", 2**31):
        with pytest.raises(ValueError, match="the slot is"):
            stamp_of(("lock:a", 1, wrong))


def test_the_error_crosses_processes_and_hides_nothing() -> None:
    error = stale(b"lock:\x1b[2J", 3, 7, 9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is StaleToken
    assert (copy.token, copy.seen, copy.key, str(copy)) == (7, 9, error.key, str(error))
    assert "\x1b" not in str(error)
    assert "slot 3" in str(error)
