"""The runtime: when commands are sent and over which connection, for tasks and for threads."""
