"""The demo itself: a server, workers that use it, and a `kill -9` now and then."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import cycle

from dibs.cli.output import counted, shown
from dibs.model import Holder, Inspect, Status
from dibs.server.auth.policy import Scope
from dibs.server.config import ServerConfig
from dibs.server.lock_events import LockEvent
from dibs.server.main import Server

KILLED_EVERY = 15.0
"""Seconds between two kills."""

REPLACED_AFTER = 8.0
"""Seconds until a killed process is started again. Its lease runs out before that."""

GLANCE = 0.5
"""Seconds between two looks at what has happened."""

VICTIMS = (b"lock:jobs/printer", b"leader:jobs/planner")
"""Keys whose holders are killed in turn."""

ALONE = 5
"""Most printers and candidates with a process each, so that they can be killed one at a time."""

_ORDER = (
    *("printer", "cashier", "candidate", "trainer", "reader"),
    *("forgetful", "printer", "editor", "candidate", "reporter"),
)
"""The first ten workers; more repeat them."""

type Tell = Callable[..., None]
"""Takes an event's name, its line, and its fields in JSON."""


class Show:
    """A demo, from its start to its end."""

    def __init__(self, config: ServerConfig, tell: Tell) -> None:
        self._tell = tell
        self._server = Server(config)
        self._stopping = asyncio.Event()
        self._running: dict[int, tuple[subprocess.Popen[bytes], list[str]]] = {}
        """Processes by pid, and their workers."""
        self._left: dict[bytes, str] = {}
        """Keys whose holder was killed, until the next worker holds them."""
        self._ended: set[str] = set()
        """Leases of killed workers, and leases whose expiry was reported."""
        self._count: Counter[str] = Counter()

    async def run(self, number: int, lasts: float | None) -> None:
        """Run until a signal, or for `lasts` seconds. Leaves no process running."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, self._stopping.set)
        await self._server.start()
        serving = asyncio.create_task(self._server.run())
        try:
            scopes, directories = {Scope.ACQUIRE}, (b"shop/", b"pool/", b"jobs/")
            _, key = await self._server.keys.create("workers", scopes, directories)
            url = self._server.url.replace("//", f"//{key}@")
            for group in processes(number):
                self._start(url, group)
            self._open(number)
            if lasts is not None:
                loop.call_later(lasts, self._stopping.set)
            await self._play(url)
        finally:
            for pid in list(self._running):
                self._kill(pid)
            self._server.stop()
            await serving
        grants, kills = (
            counted(self._count["grants"], "grant"),
            counted(self._count["kills"], "kill"),
        )
        self._tell("told", f"{grants} and {kills} in total; all processes have ended")

    def _open(self, number: int) -> None:
        server, count = self._server, len(self._running)
        self._tell(
            "listening",
            f"Started a lock service, and {number} workers in {count} processes.\n\n"
            "Open this link in your browser within 10 minutes (it works once):\n\n"
            f"  {server.sign_in_url}\n\n"
            "Or watch in another shell:\n\n"
            f"  export DIBS_URL={server.url} DIBS_API_KEY={server.first_key}\n"
            "  dibs list --watch\n\n"
            "Press Ctrl-C to stop.\n",
            url=server.url,
            sign_in_url=server.sign_in_url,
            key=server.first_key,
            workers=number,
            processes=count,
        )

    def _start(self, url: str, workers: list[str]) -> None:
        clean = {name: value for name, value in os.environ.items() if name[:5] != "DIBS_"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dibs.cli.demo.worker"],
            env=clean | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the demo alone
        )
        self._running[process.pid] = process, workers
        assert process.stdin is not None
        orders = {"url": url, "workers": workers, "parent": os.getpid()}
        with suppress(BrokenPipeError):  # it has died already, and is started again
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()

    def _kill(self, pid: int) -> list[str]:
        """Kill a process, and return its workers."""
        process, workers = self._running.pop(pid)
        process.kill()
        process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        return workers

    async def _play(self, url: str) -> None:
        """Report what happens, kill, and start again what was killed."""
        loop, log = asyncio.get_running_loop(), self._server.activity.log
        kill_at = loop.time() + KILLED_EVERY / 2
        victims, read = cycle(VICTIMS), log.last
        while not self._stopping.is_set():
            events = log.after(read, 1000)
            read += len(events)
            for event in events:
                if line := self._line(event):
                    self._tell("told", line)
            for pid in [
                pid for pid, (process, _) in self._running.items() if process.poll() is not None
            ]:
                loop.call_later(REPLACED_AFTER, self._again, url, self._kill(pid))
            if loop.time() >= kill_at and (killed := await self._strike(next(victims))):
                loop.call_later(REPLACED_AFTER, self._again, url, killed)
                kill_at = loop.time() + KILLED_EVERY
            with suppress(TimeoutError):
                async with asyncio.timeout(GLANCE):
                    await self._stopping.wait()

    def _again(self, url: str, workers: list[str]) -> None:
        if not self._stopping.is_set():
            self._start(url, workers)

    async def _strike(self, key: bytes) -> list[str]:
        """Kill the process that holds it; empty if none of ours does that has one worker."""
        answer = await self._server.runtime.call(Inspect(key))
        for holder in answer.reply.holders if isinstance(answer.reply, Status) else ():
            pid = next(
                (pid for pid, (_, each) in self._running.items() if each == [_who(holder)]), 0
            )
            if pid:
                killed = self._kill(pid)
                self._left[key] = killed[0]
                self._ended.add(holder.lease)
                self._count["kills"] += 1
                self._tell(
                    "told",
                    f"kill -9 {pid}: {killed[0]} was killed; its lease on {shown(key)} "
                    f"expires in {holder.expires_in:.1f} s",
                )
                return killed
        return []

    def _line(self, event: LockEvent) -> str:
        """The line about an event; empty for most."""
        name, who = shown(event.key), _who(event)
        if event.what == "expired" and event.lease not in self._ended:
            self._ended.add(event.lease)
            return f"{name}: {who} did not renew its lease, so it expired"
        if event.what != "granted":
            return ""
        self._count["grants"] += 1
        if dead := self._left.pop(event.key, ""):
            return f"{name} passes from {dead}, which is dead, to {who}"
        return f"{name}: {who} is the leader now" if event.kind == "leader" else ""


def processes(number: int) -> Iterable[list[str]]:
    """Names of that many workers, such as `cashier-2`, in the groups that share a process."""
    seen: Counter[str] = Counter()
    shared: list[str] = []
    alone = 0
    for at in range(number):
        role = _ORDER[at % len(_ORDER)]
        seen[role] += 1
        if role in ("printer", "candidate") and alone < ALONE:
            alone += 1
            yield [f"{role}-{seen[role]}"]
        else:
            shared.append(f"{role}-{seen[role]}")
    if shared:
        yield shared


def _who(holder: Holder | LockEvent) -> str:
    """The worker's name in the owner, `host/pid/name`."""
    return holder.owner.rpartition("/")[2]
