"""Two files that leases protect: one that compares fencing tokens, and one that does not."""

import fcntl
import os
from pathlib import Path

from leasehold.testing import Recorder
from leasehold.testing.history import Held


class Resource:
    """A file with the newest token; whoever writes has it alone for that moment."""

    def __init__(self, path: Path, recorder: Recorder, *, fenced: bool) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._name = path.name
        self._recorder = recorder
        self._fenced = fenced

    def write(self, lease: Held) -> bool:
        """Write under the lease's token; False if the resource did not accept it."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            newest = int(os.pread(self._file, 20, 0) or b"0")
            if self._fenced and lease.token < newest:
                return False
            os.pwrite(self._file, b"%020d" % lease.token, 0)
            self._recorder.wrote(self._name, lease, self._recorder.now())
            return True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


class Pair:
    """The fenced and the unfenced resource of one key."""

    def __init__(self, folder: Path, key: str, recorder: Recorder) -> None:
        self.unfenced = Resource(folder / f"unfenced-{key}", recorder, fenced=False)
        self.fenced = Resource(folder / f"fenced-{key}", recorder, fenced=True)

    def write(self, lease: Held) -> None:
        self.unfenced.write(lease)
        self.fenced.write(lease)
