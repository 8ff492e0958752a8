"""What runs in the workflow of a key's broker, and in a client's mailbox: safe in Temporal's sandbox."""
