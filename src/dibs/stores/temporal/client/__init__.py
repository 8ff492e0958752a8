"""What a process does that uses the store: connects, calls brokers, listens, lists."""
