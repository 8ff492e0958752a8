"""When commands travel and on what: the only place that knows tasks and threads."""
