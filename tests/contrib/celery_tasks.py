"""An application of Celery's as users write them; `test_celery` starts a worker of it.

Tasks write what they do to the file that `NOTES` names.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

import dibs.sync
from dibs import current_lease
from dibs.contrib.celery import locked

app = Celery("tasks", broker=os.environ.get("BROKER"), backend=os.environ.get("BROKER"))
app.conf.update(
    broker_connection_retry_on_startup=False,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    result_expires=600,
)
client = dibs.sync.connect(os.environ["LEASES"])
client.lock("used before the fork").acquire().release()


def note(*words: object) -> None:
    """One line, whoever else writes."""
    with open(os.environ["NOTES"], "a") as file:
        print(*words, file=file)


@app.task(bind=True, max_retries=0)
@locked("sync:{user_id}", client=client, countdown=0.05)
def sync(self: Any, user_id: int, seconds: float) -> int:
    """In turn with every other of the same user."""
    note("begin", user_id, self.request.id)
    time.sleep(seconds)
    note("end", user_id, self.request.id)
    return int(self.request.retries)


@app.task
@locked("killed", ttl=1, client=client)
def killed_at_first() -> int:
    lease = current_lease()
    note("killed", lease.owner.split("/")[1], lease.token)
    if Path(os.environ["NOTES"]).read_text().count("killed") == 1:
        time.sleep(1.2)  # longer than its ttl: it is renewed in this child
        lease.ensure()
        note("is held still")
        time.sleep(60)
    return lease.token
