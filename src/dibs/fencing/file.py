"""The guard for files: replaced as a whole, with the highest token beside them."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from json import dumps, loads
from pathlib import Path

from dibs.errors import DibsError
from dibs.fencing.stamp import Stamp, Stamped, stale, stamp_of


class FileFence:
    """Refuses stale writes to a file of this machine.

    Beside `orders.json` lie `orders.json.fence`, with the highest token seen for each key and slot, and
    `orders.json.fence.lock`, which writers lock with `flock` one after the other. Neither may be deleted
    while there are writers. Readers need nothing: they find the old file or the new one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(os.path.realpath(path))
        """The file itself, where a symbolic link was given."""
        self._fence = Path(f"{self.path}.fence")

    def replace(self, by: Stamped, content: str | bytes) -> None:
        """Replace the file's content under the lease. A text is written as UTF-8.

        Whatever kills the process meanwhile, the file has the old content or the new one, also after
        a power cut. Waits for other writers. Raises `StaleToken` if a higher token was seen; then the
        file is as it was. Raises `OSError`.
        """
        with self.guard(by):
            _replace(self.path, content.encode() if isinstance(content, str) else content)

    @contextmanager
    def guard(self, by: Stamped) -> Generator[Path]:
        """Check the lease, and let the block write to the path that it yields.

        Others wait meanwhile, also for a process that stands still in there: only so can its late writes
        overwrite nobody's. Raises as `replace` does.
        """
        stamp = stamp_of(by)
        with _locked(Path(f"{self._fence}.lock")):
            self._check(stamp)
            yield self.path

    def _check(self, stamp: Stamp) -> None:
        seen = self._seen()
        mine = {f"{stamp.text}#{slot}": slot for slot in stamp.slots}
        for place, slot in mine.items():
            if seen.get(place, 0) > stamp.token:
                raise stale(stamp.key, slot, stamp.token, seen[place])
        raised = seen | dict.fromkeys(mine, stamp.token)
        if raised != seen:  # before anything is written: who dies in between has written nothing
            _replace(self._fence, dumps(raised).encode())

    def _seen(self) -> dict[str, int]:
        try:
            found = loads(self._fence.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DibsError(
                f"{self._fence} can't be read, so nobody knows which tokens were seen: nothing is written "
                f"before that is put right ({error})"
            ) from error
        tokens: dict[str, int] = found
        return tokens


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold `path` locked; the system lets go of it when this process ends, however it ends."""
    descriptor, locker = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), os.getpid()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if os.getpid() == locker:  # a child that was forked meanwhile has the descriptor, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    """Give a file that content at once and for good; its mode stays. Nobody else may do so meanwhile."""
    new = Path(f"{path}.new")
    with new.open("wb") as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
