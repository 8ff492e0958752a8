"""A server that is not quite the service: it answers each request as the test says."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from http.client import parse_headers
from socketserver import StreamRequestHandler, ThreadingTCPServer
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
    return answer(status, msgspec.json.encode(told), kind="application/problem+json", **more)


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


class Peer(ThreadingTCPServer):
    """Listens on a free port of this machine until the `with` block ends."""

    allow_reuse_address = True

    def __init__(self, say: Say) -> None:
        super().__init__(("127.0.0.1", 0), _Talk)
        self.say = say
        self.asked: list[str] = []
        """The paths that were asked for."""
        self.heads: list[Message] = []
        """The headers of each request."""
        self.links: list[socket.socket] = []
        """All connections, the oldest first."""
        self.open_links = 0
        self.port: int = self.server_address[1]
        self.url = f"http://dibs_k_secret@127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(self, *about: object) -> None:
        self.shutdown()
        self.hang_up()
        self.server_close()

    def hang_up(self) -> None:
        """On everybody."""
        for link in self.links:
            with suppress(OSError):  # they were first
                link.shutdown(socket.SHUT_RDWR)

    def is_alone(self) -> bool:
        """Whether all that were here have hung up."""
        return not self.open_links


class _Talk(StreamRequestHandler):
    server: Peer

    def handle(self) -> None:
        self.server.links.append(self.connection)
        self.server.open_links += 1
        with suppress(OSError):
            while line := self.rfile.readline():
                head = parse_headers(self.rfile)
                body = self.rfile.read(int(head.get("content-length", 0)))
                path = line.split()[1].decode("latin-1")
                self.server.asked.append(path)
                self.server.heads.append(head)
                said = self.server.say(path, body)
                if said is None:
                    break
                self.wfile.write(said)
        self.server.open_links -= 1


def service(**paths: bytes | None) -> Say:
    """Answers by the last word of the path; who it is without being told."""
    known: dict[str, bytes | None] = {"about": about(), "stream": stream(), **paths}

    def say(path: str, body: bytes) -> bytes | None:
        return known[path.partition("?")[0].rpartition("/")[2]]

    return say
