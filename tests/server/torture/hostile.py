"""`python -m tests.server.torture.hostile`: a hostile tenant or stranger costs nobody else a lease.

One `dibs serve` over SQLite, Redis and PostgreSQL in turn. `dibs run` holds `ours/held` with a ttl of
10 s, while a hostile tenant of `theirs/` tries everything for 60 s: once with each scope, and once as a
stranger without a key. The run fails if the lease is lost once. It prints the answers that the attacker
got, and how long an acquire and a release took the holder's own team meanwhile.
"""

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median

from tests.servers.ports import HOST
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.http.processes import DibsServer

TTL = 10
THREADS = 48
CROWD = 400
"""Holders of the semaphore that is asked about again and again."""
FAT = 20
"""Semaphores with a hundred holders each, all with long notes."""


def b64(text: str) -> str:
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def new_id(draw: random.Random) -> str:
    return f"{draw.randrange(1 << 62):022}"


class Caller:
    """A connection that is opened again whenever it breaks."""

    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._connection: HTTPConnection | None = None

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = HTTPConnection(HOST, self._port, timeout=15)
        raw = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": "application/json"} if raw else {})
        try:
            self._connection.request(method, path, raw, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            self._connection = None
            return 0, b""


type Attack = Callable[[Caller, random.Random], int]
type Commands = Callable[[random.Random], list[dict[str, object]]]


def batch(commands: Commands) -> Attack:
    return lambda call, draw: call("POST", "/v1/batch", {"commands": commands(draw)})[0]


def command(op: str, key: str, **more: object) -> dict[str, object]:
    return {"op": op, "key": b64(key), **more}


def acquire(key: str, lease: str, **more: object) -> dict[str, object]:
    return command("acquire", key, id=lease, **{"owner": "x", "ttl": 60.0, **more})


def release(draw: random.Random) -> dict[str, object]:
    return command("release", "lock:theirs/t", id=new_id(draw), tombstone=86400.0)


def renew(draw: random.Random, number: int) -> dict[str, object]:
    return command("renew", draw.choice(["wait:zz", "lock:theirs/x"]), id=f"x{number}", ttl=0.1)


def resize(start: int, number: int) -> dict[str, object]:
    at = {"units": (1, 1024)[number % 2], "seq": start + number}
    return command("resize", SLOTS, id="r" * 22, **at)


CROWDED, SLOTS, QUEUE = "semaphore:theirs/crowd", "semaphore:theirs/slots", "lock:theirs/queue"

crowded = batch(lambda _: [command("inspect", CROWDED)] * 512)
looking_at_fat = batch(
    lambda _: [command("inspect", f"semaphore:theirs/fat{n % FAT}") for n in range(512)]
)
hasty = batch(lambda draw: [renew(draw, number) for number in range(20)])
burying = batch(lambda draw: [release(draw) for _ in range(512)])
revoking = batch(lambda _: [command("revoke", CROWDED, lease="x", reason="r")] * 4)
forcing = batch(
    lambda _: [command("revoke", "lock:theirs/none", lease=None, reason="r" * 3000)] * 200
)
joining = batch(lambda draw: [acquire(CROWDED, new_id(draw), capacity=100_000) for _ in range(64)])
beating = batch(
    lambda draw: [acquire(QUEUE, f"{draw.randrange(2000):022}", queue=True) for _ in range(256)]
)


@batch
def resizing(draw: random.Random) -> list[dict[str, object]]:
    start = draw.randrange(1 << 40)
    first = acquire(SLOTS, "r" * 22, capacity=1024)
    return [first, *(resize(start, number) for number in range(511))]


@batch
def fat(draw: random.Random) -> list[dict[str, object]]:
    wide = {"owner": "\U0001f512" * 200, "note": "\U0001f512" * 4000, "queue": True}
    names = [f"lock:theirs/{draw.randrange(1 << 30)}" for _ in range(50)]
    return [acquire(name, new_id(draw), **wide) for name in names]


@batch
def flipping(draw: random.Random) -> list[dict[str, object]]:
    """A queue, and then room for all of it at once."""
    size = {"capacity": 100_000} if draw.random() < 0.1 else {"queue": True}
    return [acquire("semaphore:theirs/flip", new_id(draw), inbox="x", **size) for _ in range(128)]


def watching(call: Caller, draw: random.Random) -> int:
    """Streams of a crowd that changes, for a second."""
    path = f"/v1/watch/locks/base64:{b64('theirs/crowd')}?kind=semaphore"
    return _open(call, draw, [f"GET {path}"] * 8)


def starving(call: Caller, draw: random.Random) -> int:
    """Bodies that are announced, and never sent."""
    return _open(call, draw, ["POST /v1/batch"] * 8, "Content-Length: 1048576\r\n")


def _open(call: Caller, draw: random.Random, requests: list[str], more: str = "") -> int:
    head = f"Host: x\r\nAuthorization: {call._headers['Authorization']}\r\n{more}\r\n"
    with ExitStack() as stack:
        for request in requests:
            peer = stack.enter_context(socket.create_connection((HOST, call._port), 5))
            peer.sendall(f"{request} HTTP/1.1\r\n{head}".encode())
        time.sleep(1 + draw.random())
    return 1


def listing(call: Caller, draw: random.Random) -> int:
    pages = ["/v1/scan?limit=1000", "/v1/locks?limit=1000", "/v1/keys"]
    return call("GET", draw.choice(pages))[0]


def nested(call: Caller, draw: random.Random) -> int:
    deep: object = []
    for _ in range(900):
        deep = [deep]
    return call("POST", "/v1/batch", {"commands": [], "x": deep})[0]


def greedy(call: Caller, draw: random.Random) -> int:
    many = draw.choice([1_073_741_823, 1_000_000, 1024])
    name = f"base64:{b64(f'theirs/{draw.randrange(50)}')}"
    return call("POST", f"/v1/locks/{name}?capacity={many}&units={many}&ttl=60")[0]


def ruling(call: Caller, draw: random.Random) -> int:
    if draw.random() < 0.5:
        prefixes = [f"base64:{b64(f'theirs/{number}/')}" for number in range(64)]
        return call("POST", "/v1/keys", {"name": "k", "scopes": ["read"], "prefixes": prefixes})[0]
    directory = f"base64:{b64(f'theirs/{draw.randrange(1 << 30)}')}"
    return call("PUT", f"/v1/restrict/locks/{directory}/", {"regions_allowed": ["XE"]})[0]


def guessing(call: Caller, draw: random.Random) -> int:
    stranger = Caller(call._port, f"dibs_{draw.randrange(1 << 48):012x}_{'x' * 22}")
    return stranger("GET", "/v1/locks")[0]


def stuffing(call: Caller, _: random.Random) -> int:
    return call("GET", "/livez", "x" * 900_000)[0]


def pipelining(call: Caller, draw: random.Random) -> int:
    """Many requests in one go, and nothing read."""
    with socket.create_connection((HOST, call._port), 5) as peer:
        peer.settimeout(2)
        peer.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 300)
        time.sleep(draw.random())
    return 1


def idling(call: Caller, draw: random.Random) -> int:
    """Connections that send a byte now and then."""
    with ExitStack() as stack:
        for _ in range(20):
            peer = stack.enter_context(socket.create_connection((HOST, call._port), 5))
            peer.sendall(b"GET /li")
        time.sleep(1 + draw.random())
    return 1


READING: tuple[Attack, ...] = (crowded, listing, nested, looking_at_fat, watching, starving)
ACQUIRING: tuple[Attack, ...] = (
    *(*READING, greedy, hasty, fat, burying, joining),
    *(flipping, beating, resizing),
)
ATTACKS: dict[str, tuple[Attack, ...]] = {
    "read": READING,
    "acquire": ACQUIRING,
    "force": (*READING, forcing, revoking),
    "admin": (*ACQUIRING, forcing, revoking, ruling),
    "stranger": (guessing, stuffing, pipelining, idling),
}


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'leases.db'}"
    else:
        with (RedisServer if kind == "redis" else PostgresServer)(folder) as server:
            yield server.url


def attack(
    port: int, key: str, attacks: tuple[Attack, ...], until: float, seed: int
) -> Counter[int]:
    """Everything at once from many threads. Answers are counted by their status; 0 is none."""
    counts: Counter[int] = Counter()

    def go_on(number: int) -> None:
        draw, call = random.Random(f"{seed}.{number}"), Caller(port, key)
        while time.monotonic() < until:
            try:
                counts[draw.choice(attacks)(call, draw)] += 1
            except OSError:
                counts[0] += 1
                time.sleep(0.05)

    threads = [threading.Thread(target=go_on, args=(each,), daemon=True) for each in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0) + 30)
    return counts


def assail(server: DibsServer, who: str, seconds: float, seed: int) -> bool:
    """Whether the lease outlived the attack; prints what came of it."""
    admin = Caller(server.port, server.key)

    def made(scope: str, directory: str) -> str:
        wanted = {
            "name": f"{who} {scope}",
            "scopes": [scope],
            "prefixes": [f"base64:{b64(directory)}"],
        }
        status, told = admin("POST", "/v1/keys", wanted)
        assert status in (200, 201), told
        key: str = json.loads(told)["key"]
        return key

    ours = made("acquire", "ours/")
    crowd = [
        acquire(CROWDED, f"{number:022}", capacity=100_000, ttl=3600.0) for number in range(CROWD)
    ]
    admin("POST", "/v1/batch", {"commands": crowd})
    for each in range(FAT):
        key = b64(f"semaphore:theirs/fat{each}")
        fatten = {"key": key, "note": "\x01" * 1000, "owner": "\x01" * 250}
        admin("POST", "/v1/batch", {"commands": [one | fatten for one in crowd[:100]]})
    theirs = "" if who == "stranger" else made(who, "theirs/")
    url = f"http://{ours}@{HOST}:{server.port}"
    run = [sys.executable, "-m", "dibs", "run", "ours/held", "--ttl", f"{TTL}s", "--url", url]
    holder = subprocess.Popen(
        [*run, "--", "sleep", "3600"], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        while admin("GET", f"/v1/locks/base64:{b64('ours/held')}")[0] != 200:
            assert holder.poll() is None, holder.stderr and holder.stderr.read()
            time.sleep(0.1)
        took, call, until = [], Caller(server.port, ours), time.monotonic() + seconds
        counts: Counter[int] = Counter()
        attacker = threading.Thread(
            target=lambda: counts.update(attack(server.port, theirs, ATTACKS[who], until, seed))
        )
        attacker.start()
        while attacker.is_alive() and holder.poll() is None:
            began = time.monotonic()
            path = f"/v1/locks/base64:{b64('ours/other')}"
            status, told = call("POST", f"{path}?ttl=30")
            if status == 200:
                call("DELETE", f"{path}?id={json.loads(told)['id']}")
                took.append(time.monotonic() - began)
            time.sleep(0.2)
        attacker.join()
        time.sleep(TTL)  # a lease that could not be renewed until now ends here
        lost = holder.poll() is not None
        answers = ", ".join(
            f"{status or 'none'} {count:,}" for status, count in sorted(counts.items())
        )
        cost = (
            f"{median(took) * 1000:.0f} ms, at most {max(took) * 1000:.0f} ms" if took else "never"
        )
        print(
            f"  {who}: {'LOST' if lost else 'held'}; a cycle of ours {cost}; answers {answers}",
            flush=True,
        )
        if lost and holder.stderr is not None:
            print("   ", holder.stderr.read().decode().strip()[-400:])
        return not lost
    finally:
        if holder.poll() is None:
            holder.send_signal(signal.SIGTERM)
            holder.wait(30)


def main() -> int:
    """The exit code: 0 if no lease was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.server.torture.hostile", description=__doc__
    )
    parser.add_argument("--stores", default="sqlite,redis,postgres")
    parser.add_argument("--who", default=",".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    kept = []
    for kind in chosen.stores.split(","):
        with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
            folder = Path(temporary)
            with store(kind, folder) as url, DibsServer(folder, url) as server:
                print(f"{kind}:", flush=True)
                kept += [
                    assail(server, who, chosen.seconds, chosen.seed)
                    for who in chosen.who.split(",")
                ]
    print(f"{kept.count(True)} of {len(kept)} attacks cost nobody a lease")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
