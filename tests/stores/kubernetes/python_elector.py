"""A candidate of the official Python client's leader election, as a program.

It prints what happens, as the other candidates do: one line of JSON for each event. SIGTERM ends it: this
client never gives a Lease up by itself.
"""

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any

kubeconfig, namespace, name, identity, duration = sys.argv[1:]
DEADLINES = {"lease_duration": int(duration), "renew_deadline": 1.5, "retry_period": 1}
"""Seconds. The client takes no shorter ones, and a `lease_duration` of whole seconds only."""

leads = threading.Event()


def tell(event: str) -> None:
    line = json.dumps({"event": event, "monotonic_ns": time.monotonic_ns()})
    os.write(1, f"{line}\n".encode())


def started() -> None:
    tell("started")
    leads.set()


def stopped() -> None:
    leads.wait()  # the client starts `started` in a thread
    leads.clear()
    tell("stopped")


def end(*_: object) -> None:
    if leads.is_set():
        tell("stopped")
    os._exit(0)


def official(module: str) -> Any:
    """A module of the client, untyped as it mostly is."""
    return import_module(f"kubernetes.{module}")


class KnownLease(official("leaderelection.resourcelock.leaselock").LeaseLock):  # type: ignore[misc]
    """A Lease that tells once it was read."""

    def get(self, *where: str) -> Any:
        found = super().get(*where)
        if found[0]:
            tell("standing")
        return found


signal.signal(signal.SIGTERM, end)
official("config").load_kube_config(config_file=kubeconfig)
while True:
    lock = KnownLease(name, namespace, identity)
    config = official("leaderelection.electionconfig").Config(
        lock, **DEADLINES, onstarted_leading=started, onstopped_leading=stopped
    )
    official("leaderelection.leaderelection").LeaderElection(config).run()
