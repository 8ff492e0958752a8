"""What is held, and what has happened lately: a server's own picture, for those who watch.

A picture is no truth: it is as new as the last look. Who holds something only the store can tell.
"""
