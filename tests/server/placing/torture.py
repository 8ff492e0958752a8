"""A directory that moves from Redis to PostgreSQL and back while its locks are in use and movers are killed.

Two servers in processes of their own, clients that acquire, renew and release through either, and a
history that the checker reads.
`python -m tests.server.placing.torture REDIS_URL POSTGRES_URL [ROUNDS [MISTAKE]]` runs it for longer than the
tests do, or with servers that have one of `mistakes.PLANS` in them, which it has to find.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from dibs.core.timing import trusted
from dibs.testing.checker import Violation, check
from dibs.testing.history import Event, merge
from tests.server.world import LONG, b64
from tests.servers.ports import free_port

PHASES = ("moving", "sealed", "clearing")
FRESH = 1.0
KEYS = ("d/one", "d/two", "d/deep/three")
TTL = 3.0

_SETTINGS = """
listen = "127.0.0.1:{port}"
records = "sqlite:///{folder}/records.db"
placement_fresh = {fresh}

[[placement]]
name = "redis"
url = "{redis}"

[[placement]]
name = "postgres"
url = "{postgres}"
"""


class Served:
    """One server, which can be killed and started again on its port."""

    def __init__(self, folder: Path, redis: str, postgres: str, program: Sequence[str]) -> None:
        self._program = program
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._file = folder / f"{port}.toml"
        self._file.write_text(
            _SETTINGS.format(port=port, folder=folder, fresh=FRESH, redis=redis, postgres=postgres)
        )
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Begin to start it."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DIBS_")}
        with (self._folder / "served.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self._program, "serve", "--config", str(self._file)],
                env=clean,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        """Have it started."""
        self.launch()
        end = time.monotonic() + LONG
        while True:
            try:
                httpx2.get(f"{self.url}/v1/openapi.json", timeout=5)
                return
            except httpx2.HTTPError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def end(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(LONG)


class Worker(threading.Thread):
    """Takes one lock after the other, now here, now there, and remembers what it saw."""

    def __init__(self, number: int, urls: list[str], key: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self.trouble: list[str] = []
        self._number, self._urls, self._stop_asked = number, urls, stop
        self._random = random.Random(number)
        self._client = httpx2.Client(headers={"Authorization": f"Bearer {key}"}, timeout=LONG)

    def run(self) -> None:
        turn = 0
        while not self._stop_asked.is_set():
            turn += 1
            lease = f"{self._number:04}-{turn:08}-{os.urandom(8).hex()}"
            self._turn(self._random.choice(KEYS), lease)
        self._client.close()

    def _send(self, method: str, name: str, **query: Any) -> httpx2.Response | None:
        url = f"{self._random.choice(self._urls)}/v1/locks/{b64(name)}"
        try:
            return self._client.request(method, url, params=query)
        except httpx2.HTTPError:
            return None  # that server was killed, and nobody knows what became of it

    def _turn(self, name: str, lease: str) -> None:
        now = time.monotonic
        for _ in range(20):
            if self._stop_asked.is_set():
                return
            asked = now()
            answer = self._send("POST", name, id=lease, ttl=TTL, wait=2)
            if answer is None or answer.status_code in (409, 503):
                time.sleep(0.02)
                continue
            if answer.status_code == 200:
                self._held(name, lease, asked, answer.json())
            elif answer.status_code != 410:
                self.trouble.append(f"{answer.status_code} {answer.text}")
            return

    def _held(self, name: str, lease: str, asked: float, told: dict[str, Any]) -> None:
        now = time.monotonic
        self._note(
            "granted",
            name,
            lease,
            token=told["sequencer"],
            invoked=asked,
            until=asked + trusted(TTL),
        )
        for _ in range(self._random.choice((0, 0, 1, 2))):
            time.sleep(self._random.uniform(0, 0.1))
            sent = now()
            answer = self._send("PATCH", name, id=lease, ttl=TTL)
            if answer is not None and answer.status_code == 200:
                self._note("renewed", name, lease, until=sent + trusted(TTL))
        self._note("releasing", name, lease)
        self._send("DELETE", name, id=lease)

    def _note(self, what: Any, name: str, lease: str, **more: Any) -> None:
        self.events.append(Event(time.monotonic(), what, f"lock:{name}", lease, **more))


def torture(
    redis: str,
    postgres: str,
    rounds: int = 1,
    workers: int = 6,
    program: Sequence[str] = ("dibs",),
) -> dict[str, Any]:
    """Move there and back `rounds` times, killing both servers in every phase; raises what is wrong."""
    with (
        TemporaryDirectory() as name,
        _servers(Path(name), redis, postgres, program) as (servers, key),
    ):
        stop = threading.Event()
        urls = [each.url for each in servers]
        crew = [Worker(number, urls, key, stop) for number in range(workers)]
        for worker in crew:
            worker.start()
        try:
            kills = 0
            for _ in range(rounds):
                for to in ("postgres", "redis"):
                    kills += _move(servers, key, to)
        finally:
            stop.set()
            for worker in crew:
                worker.join(2 * LONG)
    events = merge(event for worker in crew for event in worker.events)
    found: list[Violation] = check(events)
    assert not found, "\n".join(map(str, found[:5]))
    trouble = [each for worker in crew for each in worker.trouble]
    assert not trouble, trouble[:5]
    grants = [event for event in events if event.what == "granted"]
    for each in KEYS:
        tokens = [event.token for event in grants if event.key == f"lock:{each}"]
        assert tokens == sorted(set(tokens)), f"the tokens of {each} do not rise"
        assert tokens, f"nobody had {each}"
    renewals = sum(event.what == "renewed" for event in events)
    return {"moves": 2 * rounds, "grants": len(grants), "renewals": renewals, "kills": kills}


@contextmanager
def _servers(
    folder: Path, redis: str, postgres: str, program: Sequence[str]
) -> Generator[tuple[list[Served], str]]:
    servers = [Served(folder, redis, postgres, program) for _ in range(2)]
    made = subprocess.run(
        [
            *(sys.executable, "-m", "dibs", "keys", "create", "--name", "torture"),
            *("--scope", "admin", "--json", "--records", f"sqlite:///{folder}/records.db"),
        ],
        check=True,
        capture_output=True,
    )
    try:
        for each in servers:
            each.start()
        yield servers, json.loads(made.stdout)["key"]
    finally:
        for each in servers:
            each.end()


def _move(servers: list[Served], key: str, to: str) -> int:
    """Have the directory move, and kill a server as each phase is seen."""
    with httpx2.Client(headers={"Authorization": f"Bearer {key}"}, timeout=LONG) as client:
        return _moved(client, servers, to)


def _seen(client: httpx2.Client, servers: list[Served], path: str) -> dict[str, Any] | None:
    """How far the move is, by whichever server is there; None while none is."""
    for each in servers:
        try:
            answer = client.get(each.url + path)
        except httpx2.HTTPError:
            continue
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
    return None


def _moved(client: httpx2.Client, servers: list[Served], to: str) -> int:
    path = f"/v1/move/{b64('d')}/"
    assert client.put(servers[0].url + path, json={"to": to}).status_code == 200
    killed: list[str] = []
    end = time.monotonic() + 6 * LONG
    while True:
        assert time.monotonic() < end, f"it has not moved: {killed}"
        seen = _seen(client, servers, path)
        if seen is None:
            time.sleep(0.05)
            continue
        if seen["phase"] in PHASES and seen["phase"] not in killed:
            killed.append(seen["phase"])
            for each in servers:  # one of them is the mover
                each.end(signal.SIGKILL)
            for each in servers:  # the next phase may begin as soon as one is there
                each.launch()
        if seen["place"] == to and seen["phase"] == "settled":
            return len(killed)
        time.sleep(0.05)


if __name__ == "__main__":
    redis_url, postgres_url, *more = sys.argv[1:]
    mistake = more[1:2]
    planted = ("tests.server.placing.mistakes", *mistake) if mistake else ("dibs",)
    print(torture(redis_url, postgres_url, int((more or ["5"])[0]), program=planted))
