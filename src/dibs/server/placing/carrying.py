"""Commands on their way to the places of a plan, or of one command."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dibs.errors import DibsError
from dibs.model import Acquire, Command, Renew, Reply
from dibs.runtime.asyncio import AsyncRuntime
from dibs.runtime.port import Answer
from dibs.server.placing.plans import Plan, To
from dibs.server.placing.ways import Ways

PATIENCE = 120.0
"""A place in line lives no longer without a sign of life: a guard stands longer than any of them."""


def fitted(runtime: AsyncRuntime, command: Command, floor: int = 0) -> Command:
    """A command as a store gets it: with that store's inbox, and a floor that is high enough."""
    if type(command) is Acquire:
        return replace(
            command,
            floor=max(command.floor, floor),
            patience=min(command.patience, PATIENCE),
            inbox=runtime.inbox if command.inbox else "",
        )
    if type(command) is Renew and command.inbox:
        return replace(command, inbox=runtime.inbox)
    return command


async def carry_out(plan: Plan, ways: Ways, sent: float, patience: float | None) -> Answer:
    """Have the conversation with the places that a plan is."""
    resent = False
    try:
        asked = next(plan)
        while True:
            told = await asyncio.gather(*(_ask(each, ways, patience) for each in asked))
            resent = resent or any(again for _, again in told)
            asked = plan.send([replies for replies, _ in told])
    except StopIteration as end:
        return Answer(end.value, sent, resent)


async def _ask(to: To, ways: Ways, patience: float | None) -> tuple[Sequence[Reply] | None, bool]:
    """What came of it, None where any of it has no answer; and whether a copy is under way."""
    try:
        runtime = await ways.to(to.place)
        told = await runtime.call_all([fitted(runtime, each) for each in to.commands], patience)
    except DibsError:
        return None, True
    answers = [each for each in told if type(each) is Answer]
    if len(answers) < len(told):
        return None, True
    return [each.reply for each in answers], any(each.resent for each in answers)
