"""A server as it was before it took an update together with a start: the real one, behind a proxy.

The proxy calls that method by a name that no server has, so the refusal is the server's own. In HTTP/2 a
name goes as bits of varied length; "n" and "m" have as many, so nothing else has to change.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from tests.servers.ports import HOST

METHOD = "ExecuteMultiOperation"
_CODES = {  # of HPACK (RFC 7541, appendix B)
    "E": "1100000", "M": "1101000", "O": "1101010", "a": "00011", "c": "00100", "e": "00101", "i": "00110",
    "l": "101000", "m": "101001", "n": "101010", "o": "00111", "p": "101011", "r": "101100", "t": "01001",
    "u": "101101", "x": "1111001",
}  # fmt: skip


def _patterns() -> list[tuple[bytes, bytes]]:
    """What the end of the name looks like, and what is put there, at each place within a byte."""
    found = []
    for shift in range(8):
        real, other = (
            "".join(_CODES[letter] for letter in name)[shift:]
            for name in (METHOD, METHOD[:-1] + "m")
        )
        padding = "1" * (-len(real) % 8)
        found.append((_bytes(real + padding), _bytes(other + padding)))
    return found


def _bytes(bits: str) -> bytes:
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


class OlderServer:
    """The proxy; `refused` counts the connections on which that method was called."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.refused = 0

    @property
    def address(self) -> str:
        """`host:port`."""
        assert self._server is not None
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, HOST, 0)

    async def stop(self) -> None:
        """Listen no more, and close all connections."""
        assert self._server is not None
        self._server.close()
        for each in self._serving:
            each.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        try:
            await asyncio.gather(
                _copy(reader, to_server, self._rename), _copy(from_server, writer, bytes)
            )
        finally:
            for each in (writer, to_server):
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    def _rename(self, data: bytes) -> bytes:
        for real, other in _PATTERNS:
            if real in data:
                self.refused += 1
                return data.replace(real, other)
        return data


_PATTERNS = _patterns()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(change(data))
            await writer.drain()
    writer.close()


@asynccontextmanager
async def older_server(address: str) -> AsyncGenerator[OlderServer]:
    """For the block."""
    found = OlderServer(address)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()
