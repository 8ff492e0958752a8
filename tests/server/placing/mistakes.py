"""Plans with a mistake in them, each of which has to be found: by the model, or by the torture.

`python -m tests.server.placing.mistakes NAME serve …` is `dibs` with that mistake in it.
"""

import sys
from dataclasses import replace

from dibs.cli import main
from dibs.model import Acquire, Command, Granted, Inspect, Queued, Renew, Renewed, Status
from dibs.server.placing import plans, runtime
from dibs.server.placing.guards import Guards
from dibs.server.placing.home import Home
from dibs.server.placing.plans import Plan, To, plan_for


def does_not_look(home: Home, command: Acquire, guards: Guards) -> Plan:
    """Whoever comes anew goes to the new place at once, whoever holds it at the old one."""
    (told,) = yield (To(home.place, (Renew(command.key, command.id, command.ttl),)),)
    if told is not None and isinstance(told[0], Renewed):
        return (yield from plans._held_there(home, command))
    (told,) = yield (To(home.to, (command,)),)
    return plans.AWAY if told is None else told[0]


def looks_only(home: Home, command: Acquire, guards: Guards) -> Plan:
    """No guard: it looks whether anything stands at the old place."""
    return (yield from _looking(home, command, guards, guard_after=False))


def guards_too_late(home: Home, command: Acquire, guards: Guards) -> Plan:
    """The guard comes after the grant at the new place."""
    return (yield from _looking(home, command, guards, guard_after=True))


def _looking(home: Home, command: Acquire, guards: Guards, *, guard_after: bool) -> Plan:
    sign = Renew(command.key, command.id, command.ttl)
    (told,) = yield (To(home.place, (sign, Inspect(command.key))),)
    assert told is not None
    known, status = told
    if isinstance(known, Renewed):
        return (yield from plans._held_there(home, command))
    if isinstance(known, Granted | Queued):
        return known
    assert isinstance(status, Status)
    if status.holders or status.waiting:
        return plans.IN_BETWEEN
    reply = yield from plans._over(home, command, guards, known, status.last_token)
    if guard_after:
        yield (To(home.place, (guards.guard(command.key, home.epoch, 1, home.to),)),)
    return reply


def no_floor(home: Home, command: Acquire, guards: Guards) -> Plan:
    """Tokens of the new place follow its own clock only."""
    plan = plan_for(home, command, guards)
    asked = next(plan)
    try:
        while True:
            (to,) = asked
            bare = tuple(replace(c, floor=0) if isinstance(c, Acquire) else c for c in to.commands)
            asked = plan.send((yield (To(to.place, bare),)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


PLANS = {each.__name__: each for each in (does_not_look, looks_only, guards_too_late, no_floor)}


def mistaken(name: str) -> None:
    """Have this process carry out acquires amid a move by a plan with a mistake."""

    def plan(home: Home, command: Command, guards: Guards, *, is_untold: bool = False) -> Plan:
        if isinstance(command, Acquire) and home.to:
            return PLANS[name](home, command, guards)
        return plan_for(home, command, guards, is_untold=is_untold)

    runtime.plan_for = plan  # type: ignore[attr-defined]


if __name__ == "__main__":
    mistaken(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
