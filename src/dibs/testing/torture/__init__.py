"""Real processes that take turns on a store while they are killed and paused, and a verdict on them.

`Torture` is public in `dibs.testing`, and `dibs verify` is the command for it.
"""
