"""A catalogue: many read it at once, one rewrites it alone, and then reads on itself.

Prints: 3 readers at once
Prints: rewritten, and nobody read meanwhile
Prints: version 2, for the writer that reads on and for the others
"""

import threading

from dibs.sync import RWLock, connect


class Catalogue:
    """Something that must not be read while it is half written."""

    def __init__(self, lock: RWLock) -> None:
        self.lock = lock
        self.version = 1
        self.half_written = False
        self.together = threading.Barrier(3)

    def read(self) -> int:
        """As many as come, while nobody writes."""
        with self.lock.read():
            assert not self.half_written
            return self.version

    def read_together(self) -> None:
        """Three of these are inside at the same time, or none gets on."""
        with self.lock.read():
            self.together.wait(10)

    def rewrite(self) -> int:
        """Alone; then a reader beside others, of just what was written."""
        with self.lock.write() as lease:
            self.half_written = True
            self.version += 1
            self.half_written = False
            lease.downgrade()
            return self.version


def main() -> None:
    with connect() as client:
        catalogue = Catalogue(client.rwlock("catalogue", ttl="30s"))
        readers = [threading.Thread(target=catalogue.read_together) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        print("3 readers at once")
        written = catalogue.rewrite()
        print("rewritten, and nobody read meanwhile")
        assert written == catalogue.read()
        print(f"version {written}, for the writer that reads on and for the others")


if __name__ == "__main__":
    main()
