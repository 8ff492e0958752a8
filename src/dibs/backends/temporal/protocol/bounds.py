"""How much, how long and how often: what brokers and those who call them have to agree on."""

AGES = 3e8
"""No patience with a workflow that waits is longer: the broker looks after it when it comes first."""

MOST_SLOTS = 1_000
"""Of a pool in slot mode, where each slot is a workflow ID."""
