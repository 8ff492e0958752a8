"""The worker that serves permits, brokers and mailboxes."""
