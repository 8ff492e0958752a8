"""Locks for Temporal: in workflows, for activities, and the worker that serves them."""
