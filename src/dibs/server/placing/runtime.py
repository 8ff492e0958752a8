"""The way to several stores, as if they were one: each command goes to where its key lives."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Capabilities, Command, Revoke
from dibs.runtime.asyncio import AsyncRuntime
from dibs.runtime.mail import Letterbox, Mailroom
from dibs.runtime.port import Answer, Told
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.carrying import carry_out, fitted
from dibs.server.placing.guards import Guards
from dibs.server.placing.home import Home
from dibs.server.placing.keeper import PlacedKeeper
from dibs.server.placing.mail import PlaceMail
from dibs.server.placing.plans import plan_for
from dibs.server.placing.scanning import PlacedBackend
from dibs.server.placing.table import is_denial
from dibs.server.placing.telling import Telling
from dibs.server.placing.ways import Ways

AGAIN = 3
"""So often a command is carried out anew whose directory has taken a step of a move meanwhile."""


class PlacedRuntime:
    """A `runtime.port.Runtime` over those of one store or of several.

    While there is one only, commands go straight there, and a grant is told if that is so still.
    """

    def __init__(self, first: AsyncRuntime, ways: Ways, atlas: Atlas, guards: Guards) -> None:
        self.ways = ways
        self.atlas = atlas
        self.guards = guards
        self.mail = Mailroom(lambda _: None)
        self.letterbox: Letterbox = self.mail
        self.keeper = PlacedKeeper(ways, atlas, first.keeper)
        self.backend = PlacedBackend(ways, atlas, guards)
        self.connect_timeout = first.connect_timeout
        self.call_timeout = max(each.call_timeout for each in self.stores)
        self.holding = first.holding
        self.stamp = first.stamp
        self.now, self.me, self.signal, self.guard = first.now, first.me, first.signal, first.guard
        self.spawn, self.call_soon, self.examine = first.spawn, first.call_soon, first.examine
        self.is_ready = False
        self._first = first
        self._telling = Telling(atlas)
        for each in self.stores:
            each.letterbox = PlaceMail(self)
        atlas.on_change = lambda: ways.go_by(atlas.table.listing)

    @property
    def capabilities(self) -> Capabilities:
        """What all of them promise."""
        return self.ways.capabilities

    @property
    def stores(self) -> Collection[AsyncRuntime]:
        """The way to each of them that is here."""
        return self.ways.named.values()

    @property
    def may_grant(self) -> bool:
        """Whether anything may be granted at all, by what is known of where directories live."""
        return self.atlas.may_grant

    def place_of(self, key: bytes) -> str:
        """The placement where a key lives."""
        return self.atlas.table.home_of(key).place

    @property
    def inbox(self) -> str:
        """Something, once there is one: a command gets that of whichever store it goes to."""
        return self._first.inbox

    @property
    def is_over(self) -> bool:
        """The event loop is closed."""
        return self._first.is_over

    async def listen(self) -> None:
        """All of them listen from the start."""

    async def ready(self) -> None:
        """Connect. The default placement has to be there; another may come later."""
        await self.ways.ready(self.atlas.table.default.place)
        self.is_ready = True

    # -- one command --------------------------------------------------------------------------------

    async def call(self, command: Command, patience: float | None = None) -> Answer:
        """See `runtime.port.Runtime`. What may not be told raises `BackendUnavailable`."""
        if not self.atlas.is_lone():
            return await self._placed(command, patience, self.atlas.mark)
        try:
            answer = await self._first.call(command, patience)
        except BaseException:
            self._telling.sent(command)
            raise
        if answer.resent:
            self._telling.sent(command, answer)
        if self._is_simple() or self._telling.is_good_alone(command, answer.reply):
            return answer
        return await self._placed(command, patience, self.atlas.mark, resent=answer.resent)

    def _is_simple(self) -> bool:
        """Whether all that the only store says may be told, and nobody is to be remembered."""
        return self.atlas.is_lone() and not self._telling.untold.ids

    async def _placed(
        self, command: Command, patience: float | None, mark: int, *, resent: bool = False
    ) -> Answer:
        """Where there are several stores.

        `mark`: the atlas' when it came. `resent`: a copy was under way before already.
        """
        sent = self.now()
        for _ in range(AGAIN):
            home = self.atlas.table.home_of(command.key)
            self._telling.check(command)
            answer = await self._answer(home, command, sent, patience)
            resent = resent or answer.resent
            if is_denial(answer.reply):
                await self._telling.be_sure(mark)
            if self._telling.may(command, answer.reply, home, mark):
                return Answer(answer.reply, sent, resent)
        raise BackendUnavailable(
            "its directory is moving: send it again, with the same id, if you brought one"
        )

    async def _answer(
        self, home: Home, command: Command, sent: float, patience: float | None
    ) -> Answer:
        """What comes of a command, by where its key lives."""
        runtime = None if _needs_a_plan(home, command) else await self.ways.to(home.place)
        try:
            if runtime is not None:
                answer = await runtime.call(fitted(runtime, command, home.floor), patience)
            else:
                is_untold = self._telling.untold.has(command)
                plan = plan_for(home, command, self.guards, is_untold=is_untold)
                answer = await carry_out(plan, self.ways, sent, patience)
        except BaseException:
            self._telling.sent(command)
            raise
        self._telling.sent(command, answer)
        return answer

    # -- many ---------------------------------------------------------------------------------------

    async def call_all(
        self, commands: Sequence[Command], patience: float | None = None
    ) -> Sequence[Told]:
        """See `runtime.port.Runtime`. What is about one key keeps its order."""
        if not self.atlas.is_lone():
            return await self._all_placed(commands, patience)
        found = await self._answers(self._first, commands, patience)
        if self._is_simple():
            return found
        told, mark = list(found), self.atlas.mark
        for number, (command, each) in enumerate(zip(commands, found, strict=True)):
            if type(each) is Answer and not self._telling.is_good_alone(command, each.reply):
                told[number] = await self._tried(command, patience, mark, resent=each.resent)
        return told

    async def _all_placed(
        self, commands: Sequence[Command], patience: float | None
    ) -> Sequence[Told]:
        """Those for one place travel together; those that need a plan go one by one."""
        told: dict[int, Told] = {}
        mark = self.atlas.mark
        homes = [self.atlas.table.home_of(command.key) for command in commands]
        single = {
            command.key: list[int]()
            for home, command in zip(homes, commands, strict=True)
            if _needs_a_plan(home, command)
        }
        groups: dict[str, list[int]] = {}
        for number, (home, command) in enumerate(zip(homes, commands, strict=True)):
            one_by_one = single.get(command.key)
            (groups.setdefault(home.place, []) if one_by_one is None else one_by_one).append(number)
        await asyncio.gather(
            *(self._group(commands, each, homes, told, patience, mark) for each in groups.values()),
            *(self._one_by_one(commands, each, told, patience, mark) for each in single.values()),
        )
        return [told[number] for number in range(len(commands))]

    async def _group(
        self,
        commands: Sequence[Command],
        numbers: Sequence[int],
        homes: Sequence[Home],
        told: dict[int, Told],
        patience: float | None,
        mark: int,
    ) -> None:
        """Commands for one place, which travel together; those that may not be asked stay here."""
        asked: list[int] = []
        for number in numbers:
            try:
                self._telling.check(commands[number])
                asked.append(number)
            except BackendUnavailable as error:
                told[number] = error
        if not asked:
            return
        try:
            runtime = await self.ways.to(homes[numbers[0]].place)
        except DibsError as error:
            told.update(dict.fromkeys(asked, error))
            return
        sent = [fitted(runtime, commands[each], homes[each].floor) for each in asked]
        answers = await self._answers(runtime, sent, patience)
        unsure = await self._unsure(answers, mark)
        for number, answer in zip(asked, answers, strict=True):
            told[number], command = answer, commands[number]
            if type(answer) is not Answer or self._telling.is_good(
                command, answer.reply, homes[number], mark
            ):
                continue
            if unsure is not None and is_denial(answer.reply):
                told[number] = unsure
            else:
                told[number] = await self._tried(command, patience, mark, resent=answer.resent)

    async def _answers(
        self, runtime: AsyncRuntime, commands: Sequence[Command], patience: float | None
    ) -> Sequence[Told]:
        """What comes of commands that travel together to a place."""
        answers: Sequence[Told] = [BackendUnavailable("it was given up")] * len(commands)
        try:
            answers = await runtime.call_all(commands, patience)
        finally:
            for command, answer in zip(commands, answers, strict=True):
                if type(answer) is not Answer or answer.resent:
                    self._telling.sent(command, answer)
        return answers

    async def _unsure(self, told: Iterable[Told], mark: int) -> BackendUnavailable | None:
        """Why no denial among these may be told, if it may not; one reading is enough for all."""
        try:
            if any(type(each) is Answer and is_denial(each.reply) for each in told):
                await self._telling.be_sure(mark)
        except BackendUnavailable as error:
            return error
        return None

    async def _one_by_one(
        self,
        commands: Sequence[Command],
        numbers: Iterable[int],
        told: dict[int, Told],
        patience: float | None,
        mark: int,
    ) -> None:
        for number in numbers:
            told[number] = await self._tried(commands[number], patience, mark)

    async def _tried(
        self, command: Command, patience: float | None, mark: int, *, resent: bool = False
    ) -> Told:
        try:
            return await self._placed(command, patience, mark, resent=resent)
        except DibsError as error:
            return error


def _needs_a_plan(home: Home, command: Command) -> bool:
    """Amid a move; and always to end leases of others, as guards may be among them that nobody told of."""
    return bool(home.to) or type(command) is Revoke
