"""The workflow that keeps one key's book, for plain programs and fair permits. Safe in the sandbox."""
