"""Slot mode: a workflow's ID is the lock."""
