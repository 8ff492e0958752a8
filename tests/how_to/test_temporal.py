"""How to lock a resource in Temporal: an activity with `@needs_lock`, and workflows in fair mode."""

import re
from operator import itemgetter

from tests.how_to.programs import Programs
from tests.servers.temporal import TemporalServer

PAGE = "how-to/temporal.md"


def test_the_programs_take_turns(programs: Programs, temporal_server: TemporalServer) -> None:
    programs.environment["TEMPORAL_ADDRESS"] = temporal_server.address
    programs.environment["TEMPORAL_TASK_QUEUE"] = "permits-of-how-to"
    picking, partner = (
        programs.run(f"python -W error {name}.py") for name in ("picking", "partner")
    )
    turn = r"picking order (\d) of acme, with token (\d{16})\npicked order \1\n"
    turns = re.findall(turn, picking)
    assert {order for order, _ in turns} == set("012"), picking
    assert turns == sorted(turns, key=itemgetter(1))
    calls = re.findall(r"order (\d) calls .* slot ([01]), with token (\d{16})\n", partner)
    assert {order for order, _, _ in calls} == set("012345")
    for slot in "01":  # a slot has one holder after the other
        tokens = [token for _, used, token in calls if used == slot]
        assert tokens == sorted(set(tokens))
