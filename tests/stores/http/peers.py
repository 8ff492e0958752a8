"""Somebody at the other end who is not quite the service: answers each request as the test says."""

import socket
import threading
from collections.abc import Callable
from typing import Self

import msgspec

from dibs.model import Reply
from dibs.stores.http import wire

ABOUT = wire.About(
    server="s1",
    version="9",
    promises=wire.Promises("cluster", True, True, True, True, ("crash",)),
    key="k",
    name="n",
    scopes=("acquire", "read"),
    directories=("",),
)

type Say = Callable[[str, bytes], bytes | None]
"""What is answered to a path and a body; None: hang up."""


def answer(
    status: int = 200,
    body: bytes = b"",
    *,
    kind: str = "application/json",
    server: str | None = "s1",
    **headers: str,
) -> bytes:
    """An answer of HTTP/1.1."""
    lines = [f"HTTP/1.1 {status} So", f"content-type: {kind}", f"content-length: {len(body)}"]
    if server is not None:
        lines.append(f"{wire.SERVER_HEADER}: {server}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def problem(status: int, detail: str = "so it is", **more: str) -> bytes:
    """A problem, as the service tells it."""
    told = wire.Problem("/problems/x", "X", status, detail)
    body = msgspec.json.encode(told)
    return answer(status, body, kind="application/problem+json", server="s1", **more)


def about(server: str = "s1") -> bytes:
    """Who is there."""
    body = msgspec.json.encode(msgspec.structs.replace(ABOUT, server=server))
    return answer(body=body, server=server)


def batch(*replies: Reply, server: str = "s1", **headers: str) -> bytes:
    """Replies to a batch."""
    body = msgspec.msgpack.encode(wire.BatchAnswer(tuple(map(wire.to_wire, replies))))
    return answer(200, body, kind="application/msgpack", server=server, **headers)


def stream(*events: bytes, beat: float = 15.0, inbox: str = "s1.a", server: str = "s1") -> bytes:
    """A stream's beginning, which does not end."""
    head = answer(server=server, kind="text/event-stream").replace(b"content-length: 0\r\n", b"")
    hello = msgspec.json.encode(wire.Hello(inbox, server, beat=beat))
    return head + b"event: hello\ndata: " + hello + b"\n\n" + b"".join(events)


class Peer:
    """Listens on a free port of this machine until the `with` block ends."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.asked: list[str] = []
        """The paths that were asked for."""
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://dibs_k_secret@127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self.links: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *about: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
        for link in self.links:
            link.close()

    def hang_up(self) -> None:
        """On everybody."""
        for link in self.links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # they were first

    def is_alone(self) -> bool:
        """Whether all that were here have hung up."""
        return not any(thread.is_alive() for thread in self._threads[1:])

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self.links.append(link)
            thread = threading.Thread(target=self._talk, args=(link,))
            self._threads.append(thread)
            thread.start()

    def _talk(self, link: socket.socket) -> None:
        try:
            with link.makefile("rb") as requests:
                while self._answered(link, requests.readline(), requests):
                    pass
        except OSError:
            pass
        finally:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _answered(
        self, link: socket.socket, line: bytes, requests: "socket.SocketIO | object"
    ) -> bool:
        if not line:
            return False
        head, length = line, 0
        while (more := requests.readline()) not in (b"\r\n", b""):  # type: ignore[union-attr]
            head += more
            name, _, value = more.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = requests.read(length)  # type: ignore[union-attr]
        path = line.split()[1].decode("latin-1")
        self.asked.append(path)
        self.heads.append(head)
        said = self.say(path, body)
        if said is None:
            return False
        link.sendall(said)
        return True


def service(**paths: bytes | None) -> Say:
    """Answers by the last word of the path; who it is without being told."""
    known: dict[str, bytes | None] = {"about": about(), "stream": stream(), **paths}

    def say(path: str, body: bytes) -> bytes | None:
        return known[path.partition("?")[0].rpartition("/")[2]]

    return say
