"""Files that leases protect: one that compares fencing tokens, and beside it one that does not.

The one that does not is the control: unless faults make late writes reach it, they prove nothing.
"""

import fcntl
import os
import threading
from pathlib import Path

from dibs.testing.recorder import Held, Recorder

UNFENCED = "unfenced"
FENCED = "fenced"


class Resource:
    """A file with the newest token; whoever writes has it alone for that moment."""

    def __init__(self, path: Path, recorder: Recorder, *, fenced: bool) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._name = path.name
        self._recorder = recorder
        self._fenced = fenced
        self._here = threading.Lock()  # threads share the file, and so its lock

    def write(self, lease: Held) -> bool:
        """Write under the lease's token; False if the resource did not accept it."""
        with self._here:
            return self._write_alone(lease)

    def _write_alone(self, lease: Held) -> bool:
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


class Pairs:
    """A fenced and an unfenced resource for each unit of each key."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder = folder
        self._recorder = recorder
        self._known: dict[str, tuple[Resource, Resource]] = {}
        self._here = threading.Lock()

    def write(self, lease: Held) -> None:
        """Write what each unit protects that a lease has; where they have no numbers it is one for all."""
        name = lease.key.decode().rpartition("/")[2]
        for slot in lease.slots or ("all",):
            for resource in self._of(f"{name}-{slot}"):
                resource.write(lease)

    def _of(self, unit: str) -> tuple[Resource, Resource]:
        with self._here:
            if unit not in self._known:
                self._known[unit] = (
                    Resource(self._folder / f"{UNFENCED}-{unit}", self._recorder, fenced=False),
                    Resource(self._folder / f"{FENCED}-{unit}", self._recorder, fenced=True),
                )
            return self._known[unit]
