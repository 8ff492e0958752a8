"""Calls as signals bring them: opened only when their turn comes, as that takes longer than all else."""

import json
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from dibs.backends.temporal.protocol.wire import Call, Packed, unpack_call

type Letter = RawValue | Packed
"""As it came, or as the run before has opened it."""


def call_in(letter: Letter) -> Call:
    """What a workflow asks. Raises `ValueError` for what is no call of ours."""
    return unpack_call(opened(letter))


def opened(letter: Letter) -> Packed:
    """As plain JSON; empty if it can't be read, as by no release of ours."""
    if not isinstance(letter, RawValue):
        return letter
    try:
        found: Any = workflow.payload_converter().from_payload(letter.payload)
    except Exception as error:  # noqa: BLE001 - whatever a converter raises, a broker goes on
        workflow.logger.warning("A signal that can't be read: %s", error)
        found = {}
    return found if isinstance(found, dict) else {}


def size_of(letter: Letter) -> int:
    """In bytes."""
    return len(letter.payload.data if isinstance(letter, RawValue) else json.dumps(letter))
