"""How much, how long and how often: what brokers and those who call them have to agree on."""

AGES = 3e8
"""No patience with a workflow that waits is longer: the broker looks after it when it comes first."""

MOST_SLOTS = 1_000
"""Each slot is a workflow ID, and an entry in the book of a broker that shares."""

LOOKS_AGAIN = 15.0
"""So often a broker looks whether a permit that a workflow has is free, at least."""
