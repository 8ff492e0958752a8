"""Names of any bytes: none is folded, cut, or taken for another."""

from dibs.model import Acquire, Granted, Release, Released
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.world import World

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
        long = b"x" * (511 - len(world.prefix) + len(b"lock:"))
        return [world.key(name) for name in (*ODD, long, long + b"y", long + b"z")]

    @case
    async def test_look_alikes_are_different_keys(self, world: World) -> None:
        store = await world.connect()
        keys = self.keys(world)
        taken = await store.apply([world.acquire("a", key=key) for key in keys])
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
