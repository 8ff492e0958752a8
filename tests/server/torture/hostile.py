"""`python -m tests.server.torture.hostile`: a hostile tenant costs nobody else a lease.

One `dibs serve` over SQLite, Redis and PostgreSQL in turn. `dibs run` holds `ours/held` with a ttl of
10 s, while a hostile tenant of `theirs/` tries everything for 60 s, once with each scope. The run fails
if the lease is lost once. It prints the answers that the attacker got, and how long an acquire and a
release took the holder's own team meanwhile. (Strangers: `tests/server/test_proxies.py`.)
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median

from dibs.stores.http.names import encoded
from tests.server.torture.site import started
from tests.server.world import b64, lock
from tests.servers.ports import HOST
from tests.stores.http.processes import DibsServer

TTL = 10
THREADS = 48
CROWD, FAT = "semaphore:theirs/crowd", "semaphore:theirs/fat"
"""Semaphores with hundreds of holders, and with long notes."""


class Caller:
    """A connection that is opened again whenever it breaks."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.headers = {"Authorization": f"Bearer {key}"}
        self._connection: HTTPConnection | None = None

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = HTTPConnection(HOST, self.port, timeout=15)
        raw = None if body is None else json.dumps(body).encode()
        headers = self.headers | ({"Content-Type": "application/json"} if raw else {})
        try:
            self._connection.request(method, path, raw, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            self._connection = None
            return 0, b""


type Command = dict[str, object]
type Attack = Callable[[Caller, random.Random], int]


def command(op: str, key: str, **more: object) -> Command:
    return {"op": op, "key": encoded(key.encode()), **more}


def acquire(key: str, number: int, **more: object) -> Command:
    return command("acquire", key, **{"id": f"{number:022}", "owner": "x", "ttl": 60.0, **more})


def batch(commands: Callable[[random.Random], list[Command]]) -> Attack:
    return lambda call, draw: call("POST", "/v1/batch", {"commands": commands(draw)})[0]


def ask(method: str, path: str, body: object = None) -> Attack:
    return lambda call, draw: call(method, path, body)[0]


def connect(sent: str) -> Attack:
    """Connections that send this, read nothing, and stay for a while."""

    def attack(call: Caller, draw: random.Random) -> int:
        sent_by = sent.replace("KEY", call.headers["Authorization"]).encode()
        with ExitStack() as stack:
            for _ in range(8):
                peer = stack.enter_context(socket.create_connection((HOST, call.port), 5))
                peer.sendall(sent_by)
            time.sleep(1 + draw.random())
        return 1

    return attack


@batch
def fat(draw: random.Random) -> list[Command]:
    wide = {"owner": "\U0001f512" * 200, "note": "\U0001f512" * 4000, "queue": True}
    return [acquire(f"lock:theirs/{draw.randrange(1 << 30)}", 1, **wide) for _ in range(50)]


@batch
def flipping(draw: random.Random) -> list[Command]:
    """A queue, and then room for all of it at once."""
    size = {"capacity": 100_000} if draw.random() < 0.1 else {"queue": True, "inbox": "x"}
    numbers = [draw.randrange(1 << 62) for _ in range(128)]
    return [acquire("semaphore:theirs/flip", each, **size) for each in numbers]


@batch
def burying(draw: random.Random) -> list[Command]:
    ids = [f"{draw.randrange(1 << 62):022}" for _ in range(512)]
    return [command("release", "lock:theirs/t", id=each, tombstone=86400.0) for each in ids]


HEAD = " HTTP/1.1\r\nHost: x\r\nAuthorization: KEY\r\n"
WATCH = f"GET /v1/watch/locks/{b64('theirs/crowd')}?kind=semaphore"
NESTED = json.loads("[" * 900 + "]" * 900)
KEY = {"name": "k", "scopes": ["read"], "prefixes": [b64(f"theirs/{n}/") for n in range(64)]}

READING: tuple[Attack, ...] = (
    batch(lambda _: [command("inspect", CROWD)] * 512),
    batch(lambda _: [command("inspect", f"{FAT}{n % 20}") for n in range(512)]),
    *(ask("GET", f"/v1/{path}") for path in ("scan?limit=1000", "locks?limit=1000", "keys")),
    ask("POST", "/v1/batch", {"commands": [], "x": NESTED}),
    connect(f"{WATCH}{HEAD}\r\n"),
    connect(f"POST /v1/batch{HEAD}Content-Length: 1048576\r\n\r\n"),
)
ACQUIRING = (*READING, fat, burying, flipping)
REVOKING: tuple[Attack, ...] = (
    batch(lambda _: [command("revoke", CROWD, lease="x", reason="r")] * 4),
    batch(lambda _: [command("revoke", "lock:theirs/0", lease=None, reason="r" * 3000)] * 200),
)
RULING = (
    ask("POST", "/v1/keys", KEY),
    *(ask("PUT", f"/v1/restrict/locks/{b64(f'theirs/{n}')}/", {}) for n in range(9)),
)
ATTACKS: dict[str, tuple[Attack, ...]] = {
    "read": READING,
    "acquire": ACQUIRING,
    "force": (*READING, *REVOKING),
    "admin": (*ACQUIRING, *REVOKING, *RULING),
}


def attack(port: int, key: str, who: str, until: float, answers: Counter[int]) -> None:
    """Everything at once from many threads. Answers are counted by their status; 0 is none."""

    def go_on(number: int) -> None:
        draw, call = random.Random(f"{who}.{number}"), Caller(port, key)
        while time.monotonic() < until:
            try:
                answers[draw.choice(ATTACKS[who])(call, draw)] += 1
            except OSError:
                answers[0] += 1
                time.sleep(0.05)

    threads = [threading.Thread(target=go_on, args=(each,), daemon=True) for each in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0) + 30)


def assail(server: DibsServer, who: str, seconds: float) -> bool:
    """Whether the lease outlived the attack; prints what came of it."""
    admin = Caller(server.port, server.key)

    def made(scope: str, directory: str) -> str:
        wanted = {"name": f"{who} {scope}", "scopes": [scope], "prefixes": [b64(directory)]}
        key: str = json.loads(admin("POST", "/v1/keys", wanted)[1])["key"]
        return key

    crowd = [acquire(CROWD, n, capacity=100_000, ttl=3600.0) for n in range(400)]
    admin("POST", "/v1/batch", {"commands": crowd})
    notes = {"note": "\x01" * 1000, "owner": "\x01" * 250, "capacity": 100_000, "ttl": 3600.0}
    for each in range(20):
        commands = [acquire(f"{FAT}{each}", n, **notes) for n in range(100)]
        admin("POST", "/v1/batch", {"commands": commands})
    ours, theirs = made("acquire", "ours/"), made(who, "theirs/")
    run = [sys.executable, "-m", "dibs", "run", "ours/held", "--ttl", f"{TTL}s", "--url"]
    url = f"http://{ours}@{HOST}:{server.port}"
    holder = subprocess.Popen([*run, url, "--", "sleep", "3600"], start_new_session=True)
    try:
        while admin("GET", lock("ours/held"))[0] != 200:
            assert holder.poll() is None
            time.sleep(0.1)
        took, call, until = [], Caller(server.port, ours), time.monotonic() + seconds
        counts: Counter[int] = Counter()
        how = server.port, theirs, who, until, counts
        attacker = threading.Thread(target=attack, args=how)
        attacker.start()
        while attacker.is_alive() and holder.poll() is None:
            began = time.monotonic()
            status, told = call("POST", f"{lock('ours/other')}?ttl=30")
            if status == 200:
                call("DELETE", f"{lock('ours/other')}?id={json.loads(told)['id']}")
                took.append(time.monotonic() - began)
            time.sleep(0.2)
        attacker.join()
        time.sleep(TTL)  # a lease that could not be renewed until now ends here
        held = holder.poll() is None
    finally:
        holder.terminate()
        holder.wait(30)
    answers = ", ".join(f"{status or 'none'} {n:,}" for status, n in sorted(counts.items()))
    cost = f"{median(took) * 1e3:.0f} ms, at most {max(took) * 1e3:.0f} ms" if took else "never"
    result = "held" if held else "LOST"
    print(f"  {who}: {result}; a cycle of ours {cost}; answers {answers}", flush=True)
    return held


def main() -> int:
    """The exit code: 0 if no lease was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.server.torture.hostile", description=__doc__
    )
    parser.add_argument("--stores", default="sqlite,redis,postgres")
    parser.add_argument("--who", default=",".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    kept = []
    for kind in chosen.stores.split(","):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
            server = stack.enter_context(DibsServer(folder, started(stack, folder, kind)))
            print(f"{kind}:", flush=True)
            kept += [assail(server, who, chosen.seconds) for who in chosen.who.split(",")]
    print(f"{kept.count(True)} of {len(kept)} attacks cost nobody a lease")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
