"""A holder that is stopped before it writes: `python -m tests.fencing.paused STORE KIND PLACE`."""

import sys
from contextlib import closing

from dibs.fencing import StaleToken
from dibs.sync import connect
from tests.fencing.resources import resource


def main(store: str, kind: str, place: str) -> None:
    with connect(store) as client, closing(resource(kind, place)) as thing:
        lease = client.lock("thing", ttl=0.6, auto_renew=False).acquire()
        thing.write(lease, "early")  # from here on it believes that it may write
        print("held", lease.token, flush=True)
        sys.stdin.readline()  # here it is stopped, for longer than its lease lasts
        thing.write_unguarded("late")
        try:
            thing.write(lease, "late")
        except StaleToken as stale:
            print("stale", stale.token, stale.seen, flush=True)
        else:
            print("written", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
