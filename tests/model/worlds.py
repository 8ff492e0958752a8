"""The small worlds that are searched: each is as large as its question needs, and no larger.

The first client is the adversary's: its messages are delayed, lost and doubled at will, its clock is
slow, it pauses and dies (a client that does nothing while time passes does both). The others are calm,
so that the world stays small; they stand for anybody who takes what the adversary left.
"""

from dataclasses import replace

from tests.model.size import World

CONTENTION = World(
    "two who contend for a lock",
    ids=(1, 2),
    every=3,
    slips=(-1, 0),
    copies=1,
    reaches="granted renewed lost gone refused stale",
)

BOTH_LOUD = World(
    "two adversaries", renewals=(0, 0), loud=(True, True), reaches="granted refused gone"
)

QUEUE_OF_ACQUIRES = World(
    "a place that speaks by Acquire",
    ids=(1, 2),
    queues=(True, False),
    every=3,
    slips=(-1, 0),
    speaks="acquire",
    reaches="queued pushed granted renewed lost gone",
)

QUEUE_OF_RENEWS = replace(
    QUEUE_OF_ACQUIRES,
    name="a place that speaks by Renew",
    speaks="renew",
    liveness=True,
    renewals=(0, 0),
    stale=0,
    reaches="queued pushed granted renewed lost",
)

DEAD_WAITERS = World(
    "three in a queue, each of whom may die",
    ids=(1, 1, 1),
    units=(1, 1, 1),
    queues=(True, True, True),
    slips=(0, 0, 0),
    window=2,
    loud=(False, False, False),
    renewals=(0, 0, 0),
    confirms=True,
    liveness=True,
    speaks="acquire",
    reaches="queued granted gone",
)

LARGE_HEAD = replace(
    DEAD_WAITERS,
    name="a large request at the head of a queue",
    units=(1, 2, 1),
    capacity=2,
    queues=(False, True, True),
    renewals=(1, 0, 0),
    speaks="renew",
    reaches="queued granted refused two",
)

PRIORITY = replace(
    DEAD_WAITERS,
    name="a place of higher priority",
    queues=(False, True, True),
    priorities=(0, 0, 1),
    speaks="renew",
    reaches="queued granted",
)

SLOTS = World(
    "slots of a semaphore",
    ids=(1, 1, 1),
    units=(1, 2, 1),
    capacity=2,
    queues=(False, False, False),
    every=3,
    slips=(-1, 0, 0),
    reaches="granted refused two",
)

RESIZES = World(
    "a hold that shrinks and grows",
    capacity=2,
    resizes=True,
    renewals=(3, 0),
    reaches="granted refused two",
)

REVOCATION = World(
    "a hold that is revoked", faults=1, fault="revoke", reaches="granted renewed lost gone"
)

RESTART = World(
    "a store that restarts with its book",
    ids=(1, 2),
    queues=(True, False),
    faults=1,
    fault="restart",
    renewals=(0, 0),
    stale=0,
    reaches="restart granted pushed renewed",
)

WIPE = World(
    "a store that loses its book and keeps its clock",
    faults=1,
    fault="wipe",
    exclusive=False,
    grants=4,
    reaches="wipe granted two",
)

KEPT = World(
    "units that are kept after the hold",
    keep=2,
    copies=1,
    renewals=(0, 0),
    reaches="granted refused gone",
)

CLOCKLESS = World(
    "a store without a clock",
    ids=(1, 2),
    slips=(-1, 1),
    ttl=4,
    every=4,
    clock=False,
    reaches="granted renewed refused lost gone",
)

CLOCKLESS_QUEUE = World(
    "a queue in a store without a clock",
    queues=(True, True),
    clock=False,
    liveness=True,
    renewals=(0, 0),
    stale=0,
    reaches="granted queued renewed pushed believed",
)

CLOCKLESS_WAITER = World(
    "a waiter that speaks by Acquire in a store without a clock",
    ids=(1, 3),
    queues=(True, False),
    waiter_ttl=5,
    clock=False,
    tombstone=2,
    renewals=(0, 0),
    stale=0,
    speaks="acquire",
    reaches="granted queued gone pushed believed stale",
)

CLOCKLESS_COPIES = replace(
    CLOCKLESS_WAITER, name="a waiter whose Acquires come late in a store without a clock", stale=1
)

CLOCKLESS_RESIZES = replace(
    RESIZES,
    name="a hold that shrinks and grows in a store without a clock",
    renewals=(2, 0),
    clock=False,
)

WORLDS = [value for value in list(globals().values()) if isinstance(value, World)]
