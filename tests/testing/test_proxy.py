"""Each fault of the proxy does what it says, between plain sockets whose both ends the test holds."""

import gc
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from dibs.testing import FaultProxy

PATIENCE = 10.0  # none of these tests needs a second

type Pair = tuple[socket.socket, socket.socket]


class Rig:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(PATIENCE)
        self.proxy = stack.enter_context(FaultProxy(*self.listener.getsockname()))

    def client(self) -> socket.socket:
        address = (self.proxy.host, self.proxy.port)
        return self._stack.enter_context(socket.create_connection(address, PATIENCE))

    def pair(self) -> Pair:
        client = self.client()
        server = self._stack.enter_context(self.listener.accept()[0])
        server.settimeout(PATIENCE)
        return client, server

    def still_works(self) -> bool:
        client, server = self.pair()
        return carries(client, server, b"ping") and carries(server, client, b"pong")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def carries(source: socket.socket, target: socket.socket, data: bytes) -> bool:
    source.sendall(data)
    return read(target, len(data)) == data


def read(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := end.recv(count - len(data))):
        data += piece
    return data


def is_closed(end: socket.socket) -> bool:
    with suppress(ConnectionError):
        return end.recv(1) == b""
    return True


def is_reset(end: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        end.recv(1)
        return False
    return True


def has_nothing_to_read(*ends: socket.socket) -> bool:
    return select.select(ends, [], [], 0) == ([], [], [])


def test_it_passes_all_bytes_and_one_direction_may_end_before_the_other(rig: Rig) -> None:
    client, server = rig.pair()
    assert carries(client, server, b"hello")
    assert carries(server, client, b"hi")
    proxy = rig.proxy
    proxy.wait_for(lambda: proxy.passed("to_server") == 5 and proxy.passed("to_client") == 2)
    assert (proxy.connections, proxy.accepted) == (1, 1)
    data = bytes(range(256)) * 40_000

    def send() -> None:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)

    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(send)
        assert read(server, len(data) + 1) == data
        sent.result(PATIENCE)
    assert carries(server, client, b"the answer")
    server.close()
    assert client.recv(1) == b""
    proxy.wait_for(lambda: proxy.connections == 0)


def test_a_reset_is_passed_on_as_one_and_without_a_server_connections_are_reset(rig: Rig) -> None:
    client, server = rig.pair()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    assert is_reset(client)
    rig.listener.close()
    with pytest.raises(ConnectionResetError):  # maybe even before the client is through connecting
        rig.client().recv(1)


def test_cut_closes_all_and_refuse_keeps_new_ones_out_of_the_port(rig: Rig) -> None:
    pairs = [rig.pair(), rig.pair()]
    assert carries(*pairs[0], b"x")
    rig.proxy.cut()
    assert rig.proxy.connections == 0
    assert all(is_closed(end) for pair in pairs for end in pair)
    client, server = rig.pair()
    rig.proxy.refuse()
    rig.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        rig.client()
    assert carries(client, server, b"x")
    rig.proxy.heal()
    assert carries(client, server, b"y")
    assert rig.still_works()


def test_hang_swallows_both_ways_accepts_and_ends_no_connection(rig: Rig) -> None:
    proxy = rig.proxy
    client, server = rig.pair()
    silent = rig.pair()
    proxy.hang()
    client.sendall(b"request")
    server.sendall(b"reply")
    proxy.wait_for(lambda: proxy.swallowed("to_server") == 7 and proxy.swallowed("to_client") == 5)
    newcomer = rig.client()
    newcomer.sendall(b"anybody there?")
    proxy.wait_for(lambda: proxy.swallowed("to_server") == 21)
    assert has_nothing_to_read(client, server, newcomer, rig.listener)
    assert (proxy.passed("to_server"), proxy.passed("to_client")) == (0, 0)
    server.close()
    assert has_nothing_to_read(client)
    assert proxy.connections == 3
    proxy.heal()
    assert is_closed(client)
    assert is_closed(newcomer)
    assert carries(*silent, b"it has lost nothing")
    assert rig.still_works()


def test_drop_replies_lets_requests_pass(rig: Rig) -> None:
    proxy = rig.proxy
    client, server = rig.pair()
    proxy.drop_replies()
    assert carries(client, server, b"acquire")
    server.sendall(b"granted")
    proxy.wait_for(lambda: proxy.swallowed("to_client") == 7)
    assert has_nothing_to_read(client)
    assert carries(*rig.pair(), b"again")
    proxy.heal()
    assert is_closed(client)
    assert rig.still_works()


def test_delay_takes_its_time_in_each_direction_and_keeps_the_order(rig: Rig) -> None:
    client, server = rig.pair()
    rig.proxy.delay(3600, direction="to_server")
    client.sendall(b"late")
    assert carries(server, client, b"at once")
    assert has_nothing_to_read(server)
    rig.proxy.heal()
    assert read(server, 4) == b"late"
    rig.proxy.delay(0.05, jitter=0.1)
    start = time.monotonic()
    assert carries(server, client, b"a reply")
    assert time.monotonic() - start >= 0.05
    expected = b"".join(b"%d " % number for number in range(100))
    for word in expected.split():
        server.sendall(word + b" ")
    server.close()
    assert read(client, len(expected) + 1) == expected


def test_throttle_bounds_the_rate(rig: Rig) -> None:
    client, server = rig.pair()
    rig.proxy.throttle(100_000)
    start = time.monotonic()
    assert carries(client, server, bytes(20_000))
    assert time.monotonic() - start >= 0.2
    with pytest.raises(ValueError, match="above 0"):
        rig.proxy.throttle(0)


def test_reset_after_lets_just_so_much_pass(rig: Rig) -> None:
    client, server = rig.pair()
    assert carries(server, client, b"before")
    rig.proxy.reset_after(4)
    server.sendall(b"halfway")
    assert read(client, 4) == b"half"
    assert is_reset(client)
    assert is_reset(server)
    assert rig.proxy.resets == 1
    client, server = rig.pair()
    rig.proxy.reset_after(6, "to_server")
    assert carries(client, server, b"1234")
    assert carries(server, client, b"as many bytes as you like")
    client.sendall(b"5678")
    assert read(server, 2) == b"56"
    assert is_reset(server)
    assert rig.still_works()


def test_healing_ends_every_fault(rig: Rig) -> None:
    proxy = rig.proxy
    proxy.refuse()
    proxy.hang()
    proxy.delay(3600, direction="to_server")
    proxy.delay(3600)
    proxy.throttle(1)
    proxy.reset_after(0)
    proxy.heal()
    assert rig.still_works(), "within the time-outs of its sockets"


def test_closing_ends_everything_and_may_be_repeated(rig: Rig) -> None:
    client, server = rig.pair()
    rig.proxy.hang()
    rig.proxy.close()
    rig.proxy.close()
    assert is_closed(client)
    assert is_closed(server)
    with pytest.raises(ConnectionRefusedError):
        rig.client()
    assert "dibs-fault-proxy" not in {thread.name for thread in threading.enumerate()}


def test_no_connection_is_leaked_when_it_refuses_or_ends() -> None:
    """Also none that is just being accepted, or made to the server: Python would warn of each."""
    over = threading.Event()

    def knock(proxy: FaultProxy) -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection((proxy.host, proxy.port), PATIENCE):
                pass

    with (
        socket.create_server(("127.0.0.1", 0), backlog=128) as listener,
        ThreadPoolExecutor(4) as pool,
    ):
        with FaultProxy(*listener.getsockname()) as proxy:
            for _ in range(4):
                pool.submit(knock, proxy)
            for _ in range(15):
                proxy.refuse()
                proxy.heal()
        over.set()
    gc.collect()
