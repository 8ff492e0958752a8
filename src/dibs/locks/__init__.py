"""What is leased and how, written once for tasks and threads, over `runtime.port`."""
