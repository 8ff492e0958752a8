"""Runs one server and ends it with the process that asked for it, however that one ends.

    leash.py --parent PID --signal NUMBER -- COMMAND ...

A death signal alone would not do: the kernel sends it when the *thread* that started a server ends.
So this small process, which has one thread, watches over one server. It prints the server's id, waits
for the first of the two to end, and passes on how the server ended. Needs only the standard library.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
import time

PATIENCE = 5.0  # seconds that a server has to end by itself


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, required=True, help="how to ask it to end")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    server = subprocess.Popen(options.command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(server.pid, flush=True)
    if not first_to_end(server, options.parent):
        server.send_signal(options.signal)
        server.send_signal(signal.SIGCONT)  # a stopped process hears nothing until it continues
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()
    return server.wait()


def first_to_end(server: "subprocess.Popen[bytes]", parent: int) -> bool:
    """Wait until the server has ended (True) or the parent has (False)."""
    try:
        watched = [os.pidfd_open(server.pid), os.pidfd_open(parent)]
    except (AttributeError, OSError):  # not Linux, or the parent has ended already
        while server.poll() is None and os.getppid() == parent:
            time.sleep(0.1)
        return server.poll() is not None
    ready, _, _ = select.select(watched, [], [])
    return watched[0] in ready


if __name__ == "__main__":
    status = main()
    sys.exit(128 - status if status < 0 else status)
