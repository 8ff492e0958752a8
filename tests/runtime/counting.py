"""Children of multiprocessing's that count under a lock which their parent made, used, and pickled.

The store is that in $DIBS_URL. With $WARM, whoever imports this uses it: with `forkserver` that is the
server, before it forks.
"""

import json
import multiprocessing
import os
from typing import Any

from dibs import LeaseLost
from dibs.sync import Lease, Lock

TURNS, CHILDREN = 15, 2
inherited: list[Lease] = []

if os.environ.get("WARM"):
    Lock("warm").acquire().release()


def fate(lease: Lease) -> Any:
    """What a child makes of a lease of its parent's."""
    try:
        lease.ensure()
    except LeaseLost as error:
        return error.reason, lease.release()
    return "held"


def work(lock: Lock, counter: Any, answers: Any) -> None:
    """Reads, then writes: only the lock keeps the count right."""
    owners, tokens = set(), []
    for _ in range(TURNS):
        with lock as lease:
            counter.value += 1
            owners.add(lease.owner.split("/")[1])
            tokens.append(lease.token)
    answers.put((os.getpid(), sorted(owners), tokens, [fate(lease) for lease in inherited]))


def main(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["tests.runtime.counting"])
        os.environ["WARM"] = "yes"
    lock, mine = Lock("counter"), Lock("parent", ttl=1).acquire()
    inherited.append(mine)
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
    mine.wait_lost(1.2)  # longer than its ttl, in which it is renewed
    mine.ensure()
    codes = [child.exitcode for child in children]
    parent = [os.getpid(), mine.owner.split("/")[1]]
    print(json.dumps({"told": told, "count": counter.value, "codes": codes, "parent": parent}))
    print(json.dumps([Lock("parent").locked(), mine.release(), lock.locked()]))
