"""The pure heart: no await, no clock, no randomness, no input or output."""
