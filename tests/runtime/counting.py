"""Children of multiprocessing's that count under a lock which their parent made, used, and pickled.

The store is that in $DIBS_URL. With $WARM, whoever imports this uses it: with `forkserver` that is the
server, before it forks.
"""

import json
import multiprocessing
import os
from typing import Any

from dibs.sync import Lock

TURNS, CHILDREN = 15, 2

if os.environ.get("WARM"):
    Lock("warm").acquire().release()


def work(lock: Lock, counter: Any, answers: Any) -> None:
    """Reads, then writes: only the lock keeps the count right."""
    owners, tokens = set(), []
    for _ in range(TURNS):
        with lock as lease:
            counter.value += 1
            owners.add(lease.owner.split("/")[1])
            tokens.append(lease.token)
    answers.put((os.getpid(), sorted(owners), tokens))


def main(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["tests.runtime.counting"])
        os.environ["WARM"] = "yes"
    lock = Lock("counter")
    with lock:
        pass  # so it is in use already
    counter, answers = context.Value("i", 0, lock=False), context.Queue()
    children = [
        context.Process(target=work, args=(lock, counter, answers)) for _ in range(CHILDREN)
    ]
    for child in children:
        child.start()
    told = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    assert not lock.locked()
    codes = [child.exitcode for child in children]
    print(json.dumps({"told": told, "count": counter.value, "codes": codes, "parent": os.getpid()}))
