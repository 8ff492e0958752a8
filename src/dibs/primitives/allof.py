"""Several leases, all or nothing."""

from typing import Any, ClassVar, Unpack

from dibs.config import UNSET, Duration, Unset, optional_seconds, safe_ttl
from dibs.errors import AcquireTimeout
from dibs.primitives import observing
from dibs.primitives.allof_gathering import Gathering
from dibs.primitives.allof_leases import LeasesBase
from dibs.primitives.allof_parts import Part, Wish, checked, in_order
from dibs.primitives.entering import Entering
from dibs.primitives.messages import key_shown
from dibs.primitives.options import NoOptions, refuse_options
from dibs.primitives.primitive import PrimitiveBase
from dibs.primitives.watching import OnWait, check_on_wait
from dibs.runtime.port import Runtime


class AllOfBase[LeasesT: LeasesBase[Any]](Entering[LeasesT]):
    """Several resources that are acquired together; like every primitive, without state."""

    _leases_type: type[LeasesT]
    _takes: ClassVar[type[PrimitiveBase[Any]]]
    _world: ClassVar[str]
    _may_await: ClassVar[bool] = True
    """Its callbacks may be coroutine functions."""

    def __init__(
        self,
        *members: Any,
        wait: Duration | Unset | None = UNSET,
        ttl: Duration | Unset = UNSET,
        on_wait: OnWait | None = None,
        **others: Unpack[NoOptions],
    ) -> None:
        if others:
            refuse_options("AllOf()", others, AllOfBase.__init__)
        given: dict[str, Any] = {}
        if not isinstance(ttl, Unset):
            given["ttl"] = safe_ttl(ttl)
        if not isinstance(wait, Unset):
            given["wait"] = optional_seconds(wait, "wait")
        if on_wait is not None:
            given["on_wait"] = self._checked(on_wait)
        self._named = [part._replace(**given) for part in self._flat(members)]
        if not self._named:
            raise ValueError(
                "AllOf is given nothing: name what is to be held, as AllOf(lock, other)"
            )
        self._parts = in_order(self._named)
        self._wait = self._shortest()
        by_client = {id(part.primitive._client): part.primitive for part in self._parts}
        self._of_each_client = list(by_client.values())
        self._entered = {}

    def _flat(self, members: tuple[Any, ...]) -> list[Part]:
        """The parts as they were named, those of another AllOf among them, as that has them."""
        parts: list[Part] = []
        for member in members:
            if isinstance(member, AllOfBase):
                within: list[Part] = member._named
                for part in within:
                    checked(part.primitive, self._takes, self._world)
                parts += within
            else:
                parts.append(checked(member, self._takes, self._world))
        return parts

    def _checked(self, on_wait: OnWait | None) -> OnWait | None:
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
        return on_wait

    def _shortest(self) -> float | None:
        """How long those wait that would wait the shortest; None: for ever."""
        waits = [part.patience for part in self._named]
        return min((wait for wait in waits if wait is not None), default=None)

    # -- where --------------------------------------------------------------------------------------

    def _runtime(self) -> Runtime:
        return self._of_each_client[0]._runtime()

    def _only_runtime(self) -> Runtime:
        rt = self._runtime()
        if any(each._runtime() is not rt for each in self._of_each_client[1:]):
            raise ValueError(
                f"{self._called} are not all of one client, and only one store can give all or nothing: "
                "make all of them by the same client"
            )
        return rt

    @property
    def _called(self) -> str:
        return ", ".join(key_shown(part.key) for part in self._parts)

    def __repr__(self) -> str:
        return f"<AllOf {self._called}>"

    # -- acquiring ----------------------------------------------------------------------------------

    async def _acquire(
        self,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        on_wait: OnWait | None = None,
    ) -> LeasesT:
        rt = self._only_runtime()
        patience = self._wait if isinstance(wait, Unset) else optional_seconds(wait, "wait")
        for part in self._parts:
            await part.primitive._check_the_store(rt)
        me = rt.me()
        self._checked(on_wait)
        leases: dict[bytes, Any] = {}
        try:
            await self._take_again(rt, me, patience, leases)
            rest = [part for part in self._parts if part.key not in leases]
            wishes = [part.wish(priority, note, on_wait) for part in rest]
            if wishes:
                leases |= await self._gathered(rt, wishes, me, patience)
            return self._leases_type(rt, [leases[part.key] for part in self._named], me)
        except BaseException:
            for lease in leases.values():
                lease._drop()
            raise

    async def _take_again(
        self, rt: Runtime, me: object, patience: float | None, leases: dict[bytes, Any]
    ) -> None:
        """What our task or thread holds already: another lease of it, where it may be held twice."""
        for part in self._parts:
            again = await part.primitive._held_already(rt, me, patience)
            if again is not None:
                leases[part.key] = again

    async def _gathered(
        self, rt: Runtime, wishes: list[Wish], me: object, patience: float | None
    ) -> dict[bytes, Any]:
        """What nobody of us holds yet."""
        seen = None
        if observing.observer is not None:
            seen = observing.observer.acquiring([each.ask for each in wishes], patience, me)
            wishes = [each._replace(ask=seen.traced(each.ask)) for each in wishes]
        try:
            holds = await Gathering(rt, wishes, me).run(patience)
        except BaseException as error:
            if seen is not None:
                seen.end(error)
            if isinstance(error, AcquireTimeout):
                for wish in wishes:
                    if wish.ask.key == error.key:
                        wish.primitive._look_at(error)
            raise
        if seen is not None:
            seen.end(None)
        return {
            wish.ask.key: wish.primitive._given(hold)
            for wish, hold in zip(wishes, holds, strict=True)
        }

    async def _try(self, priority: int | None = None, note: str | None = None) -> LeasesT | None:
        try:
            return await self._acquire(0, priority, note)
        except AcquireTimeout:
            return None
