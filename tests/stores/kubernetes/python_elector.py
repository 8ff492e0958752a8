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

leading = False


def tell(event: str) -> None:
    line = json.dumps({"event": event, "monotonic_ns": time.monotonic_ns()})
    os.write(1, f"{line}\n".encode())


def started() -> None:
    global leading
    leading = True
    tell("started")


def stopped() -> None:
    global leading
    if leading:
        leading = False
        tell("stopped")


def end(*_: object) -> None:
    stopped()
    os._exit(0)


def official(module: str) -> Any:
    """A module of the client, untyped as it mostly is."""
    return import_module(f"kubernetes.{module}")


def run_for_ever() -> None:
    has_begun = threading.Event()

    def begin() -> None:
        started()
        has_begun.set()

    def lost() -> None:
        has_begun.wait()
        has_begun.clear()
        stopped()

    official("config").load_kube_config(config_file=kubeconfig)
    while True:
        lock = official("leaderelection.resourcelock.leaselock").LeaseLock(
            name, namespace, identity
        )
        get = lock.get

        def read(*where: str) -> Any:
            found = get(*where)  # noqa: B023  # it is called within this round
            if found[0]:
                tell("standing")
            return found

        lock.get = read
        config = official("leaderelection.electionconfig").Config(
            lock, **DEADLINES, onstarted_leading=begin, onstopped_leading=lost
        )
        official("leaderelection.leaderelection").LeaderElection(config).run()


signal.signal(signal.SIGTERM, end)
run_for_ever()
