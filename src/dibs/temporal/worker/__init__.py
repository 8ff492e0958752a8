"""The worker that serves permits and brokers."""
