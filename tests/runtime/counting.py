"""Children of multiprocessing's that use a lock which their parent made, used, and pickled.

The store is that in $DIBS_URL. With $WARM, whoever imports this uses it: with `forkserver` that is the
server, before it forks.
"""

import json
import multiprocessing
import os
from typing import Any

from dibs.sync import Lock

if os.environ.get("WARM"):
    Lock("warm").acquire().release()


def work(lock: Lock, answers: Any) -> None:
    for _ in range(2):
        with lock as lease:
            answers.put((os.getpid(), lease.owner, lease.token))


def main(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["tests.runtime.counting"])
        os.environ["WARM"] = "yes"
    lock = Lock("counter")
    with lock:
        pass  # so it is in use already
    answers = context.Queue()
    children = [context.Process(target=work, args=(lock, answers)) for _ in range(2)]
    for child in children:
        child.start()
    told = [answers.get(timeout=60) for _ in range(4)]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert not lock.locked()
    print(json.dumps([[os.getpid(), "", 0], *told]))
