"""Four processes keep one file up to date; one that was stopped for too long can't put an old one back.

`python examples/fencing_file.py`

Prints: in the file: written with token …
Prints: refused: token … of lock report is stale
Prints: in the file: written with token …
"""

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

from dibs.fencing import FileFence, StaleToken
from dibs.sync import connect

spawn = multiprocessing.get_context("spawn")


def work(url: str, file: str) -> None:
    """What each process does: take its turn, and replace the file as a whole."""
    with connect(url) as client, client.lock("report") as lease:
        FileFence(file).replace(lease, f"written with token {lease.token}")


def main(url: str, folder: Path) -> None:
    file = folder / "report.txt"
    with connect(url) as client:
        stopped = client.lock("report", ttl=0.5, auto_renew=False).acquire()
        time.sleep(0.6)  # it doesn't know that its lease is over
        workers = [spawn.Process(target=work, args=(url, str(file))) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print("in the file:", file.read_text())
        try:
            FileFence(file).replace(stopped, "an old report")
        except StaleToken as stale:
            print("refused:", stale)
        print("in the file:", file.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        main(os.environ.get("DIBS_URL", f"sqlite:///{place / 'leases.db'}"), place)
