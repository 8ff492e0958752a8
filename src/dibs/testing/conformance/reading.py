"""Inspect and scan: who holds, who waits, page by page."""

from itertools import batched

from dibs.core.names import fingerprint
from dibs.model import Acquire, Granted, Release, Released, Reply
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.world import World


class ReadingCases(Suite):
    """Status of a key, and lists of keys."""

    @case
    async def test_an_unknown_key_is_empty(self, world: World) -> None:
        store = await world.connect()
        status = await world.status(store)
        assert (status.holders, status.waiters, status.waiting) == ((), (), 0)
        page = await store.scan(world.prefix, None, 10)
        assert (list(page.items), page.cursor) == ([], None)

    @case
    async def test_holders_by_token_and_waiters_by_turn(self, world: World) -> None:
        store = await world.connect()
        for name in "zyx":
            await world.take(store, name, capacity=3)
        await world.queue(store, "low", capacity=3, priority=-1, units=2, note="n")
        await world.queue(store, "high", capacity=3, priority=1)
        status = await world.status(store)
        assert (status.key, status.capacity, status.waiting) == (world.key(), 3, 2)
        assert [holder.owner for holder in status.holders] == ["owner-z", "owner-y", "owner-x"]
        assert status.last_token == status.holders[-1].token
        low = status.waiters[1]
        assert low.lease == fingerprint("low")
        assert (low.owner, low.units, low.priority, low.note) == ("owner-low", 2, -1, "n")

    @case
    async def test_ages_and_times_left(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=30)
        await world.queue(store, "b", waiter_ttl=60)
        world.pass_time(5 * world.second)
        status = await world.status(store)
        (holder,), (waiter,) = status.holders, status.waiters
        if "clock" in world.store.capabilities.names():
            assert 4.9 * world.second <= holder.held_for <= 10 * world.second
            assert 4.9 * world.second <= waiter.waited <= 10 * world.second
        longest = world.at_most(30 * world.second)
        assert 15 * world.second <= holder.expires_in <= longest - 4.9 * world.second

    @case
    async def test_looking_changes_nothing(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=10)
        for _ in range(6):
            world.pass_time(2 * world.second)
            await world.status(store)
            await store.scan(world.prefix, None, 10)
        await world.outlast(1 * world.second, by=store)
        await world.take(store, "b")

    @case
    async def test_a_scan_lists_what_is_in_use(self, world: World) -> None:
        store = await world.connect()
        held, waited, idle = (world.key(name) for name in (b"held", b"waited", b"idle"))
        await world.take(store, "a", key=held)
        await world.take(store, "a", key=waited)
        await world.queue(store, "b", key=waited)
        await world.take(store, "a", key=idle)
        await world.say(store, Release(idle, "a"))
        page = await store.scan(world.prefix, None, 10)
        assert {status.key: status.waiting for status in page.items} == {held: 0, waited: 1}
        assert all(status.holders for status in page.items)

    @case
    async def test_a_scan_goes_on_where_it_stopped_in_byte_order(self, world: World) -> None:
        store = await world.connect()
        keys = sorted(world.key(bytes([number])) for number in range(0, 256, 11))
        await store.apply([world.acquire("a", key=key) for key in reversed(keys)])
        found: list[bytes] = []
        cursor: bytes | None = None
        for _ in range(len(keys) + 1):
            page = await store.scan(world.prefix, cursor, 5)
            assert len(page.items) <= 5
            found += [status.key for status in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert cursor is None
        assert found == keys

    @case
    async def test_a_prefix_is_plain_bytes(self, world: World) -> None:
        store = await world.connect()
        names = [b"a%b", b"a%", b"a_b", b"axb", b"a*b", b"a\0b", b"A%b", b"\xff\xff", b"\xffa"]
        await store.apply([world.acquire("a", key=world.key(name)) for name in names])
        for prefix in (b"a%", b"a_", b"a*", b"a\0", b"a", b"\xff", b"\xff\xff", b"b"):
            page = await store.scan(world.key(prefix), None, 100)
            expected = sorted(world.key(name) for name in names if name.startswith(prefix))
            assert [status.key for status in page.items] == expected

    @case
    async def test_an_expired_hold_is_not_listed(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=3)
        await world.outlast(3 * world.second, by=store)
        assert list((await store.scan(world.prefix, None, 10)).items) == []


ODD = [
    b"plain",
    b"Plain",
    b"plain ",
    b" plain",
    b"plain\0",
    b"plain\0\0",
    b"\0",
    b"\0plain",
    b"plain/",
    b"plain//",
    b"/plain",
    b"../plain",
    b".",
    b"..",
    b"%70lain",
    b"%",
    b"%%",
    b"_",
    b"*",
    b"?",
    b"[a-z]",
    b"{plain}",
    b"}{",
    b":",
    b"lock:plain",
    b"\\",
    b"\\x00",
    b"'",
    b'"; DROP TABLE leases; --',
    b"\n",
    b"\r\n",
    b"\t",
    b"\xff",
    b"\xff\xfe",
    b"\x80",
    b"\xc3\xa9",  # e with an acute accent, in one code point
    b"e\xcc\x81",  # and in two
    b"\xe9",  # and in Latin-1
    "\u212a".encode(),  # the Kelvin sign
    b"K",
    b"k",
    "ｋ".encode(),
    "\u0130".encode(),
    "i\u0307".encode(),
    "\u202egnp".encode(),
    "😀".encode(),
    b"0",
    b"00",
    b"1e3",
    b"1000",
    b"nan",
    b"true",
    b"\xef\xbb\xbfplain",
]


class Naming(Suite):
    """Keys that a careless store would mix up."""

    def keys(self, world: World) -> list[bytes]:
        """All odd names, and two of full length that differ in their last byte."""
        long = b"x" * (511 - len(world.prefix) + len(world.kind) + 1)
        return [world.key(name) for name in (*ODD, long, long + b"y", long + b"z")]

    @case
    async def test_look_alikes_are_different_keys(self, world: World) -> None:
        store = await world.connect()
        keys = self.keys(world)
        taken: list[Reply] = []
        for some in batched(keys, 12):  # a store can have to start something for each key
            taken += await store.apply([world.acquire("a", key=key) for key in some])
        assert [
            key for key, reply in zip(keys, taken, strict=True) if type(reply) is not Granted
        ] == []
        status = [await world.status(store, key) for key in keys]
        assert [found.key for found in status] == keys
        assert [len(found.holders) for found in status] == [1] * len(keys)

    @case
    async def test_each_is_released_alone(self, world: World) -> None:
        store = await world.connect()
        keys = self.keys(world)
        await store.apply([world.acquire("a", key=key) for key in keys])
        for number, key in enumerate(keys):
            assert await world.say(store, Release(key, "a")) == Released()
            if number % 10 == 0:
                page = await store.scan(world.prefix, None, 1000)
                assert {found.key for found in page.items} == set(keys[number + 1 :])

    @case
    async def test_ids_owners_and_notes_of_any_text(self, world: World) -> None:
        store = await world.connect()
        for number, text in enumerate(("\0", "é'\"\\", "\n\t", "😀", "{}", "%s", "x" * 100)):
            key = world.key(b"%d" % number)
            command = Acquire(key, f"id-{text}", text, 30 * world.second, note=text)
            assert isinstance(await world.say(store, command), Granted)
            (holder,) = (await world.status(store, key)).holders
            assert (holder.owner, holder.note) == (text, text)
            assert await world.say(store, Release(key, f"id-{text}")) == Released()
