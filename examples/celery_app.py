"""A Celery task that runs once at a time for each user, in whatever worker.

Start workers with `celery -A celery_app worker` in this folder. Run as it stands, it calls the task
itself, and then nobody could send it again, as a worker does.

Prints: synchronised user 7 with token …
Prints: busy: sync:7 is held by …
"""

import os
from concurrent.futures import ThreadPoolExecutor

from celery import Celery  # type: ignore[import-untyped]

from dibs import AcquireTimeout
from dibs.contrib.celery import locked
from dibs.sync import Lock, current_lease

app = Celery("celery_app", broker=os.environ.get("BROKER", "memory://"))


@app.task(expires=3600)
@locked("sync:{user_id}", on_busy="retry")
def synchronise(user_id: int) -> str:
    return f"synchronised user {user_id} with token {current_lease().token}"


if __name__ == "__main__":
    print(synchronise(7))
    with Lock("sync:7"), ThreadPoolExecutor() as threads:
        try:
            threads.submit(synchronise, 7).result()
        except AcquireTimeout as busy:
            print("busy:", busy)
