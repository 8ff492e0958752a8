"""Files that leases protect: one that compares fencing tokens, and one that does not.

The one that does not is the control: unless late writes reach it, the faults prove nothing.
"""

import fcntl
import os
import threading
from pathlib import Path

from dibs.testing.recorder import RecordedLease, Recorder

UNFENCED = "unfenced"
FENCED = "fenced"


class ProtectedFile:
    """A file with the newest token. A lock of the file lets one write at a time."""

    def __init__(self, path: Path, recorder: Recorder, *, fenced: bool) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._name = path.name
        self._recorder = recorder
        self._fenced = fenced
        self._here = threading.Lock()  # threads share the file, and so its lock

    def write(self, lease: RecordedLease) -> bool:
        """Write under the lease's token; False if the resource did not accept it."""
        with self._here:
            return self._write_alone(lease)

    def _write_alone(self, lease: RecordedLease) -> bool:
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


class ProtectedFiles:
    """A fenced and an unfenced file for each unit of each key."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder = folder
        self._recorder = recorder
        self._known: dict[str, tuple[ProtectedFile, ProtectedFile]] = {}
        self._here = threading.Lock()

    def write(self, lease: RecordedLease) -> None:
        """Write the files of each slot of a lease; without slots there is one pair for the key."""
        name = lease.key.decode().rpartition("/")[2]
        for slot in lease.slots or ("all",):
            for resource in self._of(f"{name}-{slot}"):
                resource.write(lease)

    def _of(self, unit: str) -> tuple[ProtectedFile, ProtectedFile]:
        with self._here:
            if unit not in self._known:
                self._known[unit] = (
                    ProtectedFile(
                        self._folder / f"{UNFENCED}-{unit}", self._recorder, fenced=False
                    ),
                    ProtectedFile(self._folder / f"{FENCED}-{unit}", self._recorder, fenced=True),
                )
            return self._known[unit]
