"""What clients, workflows and brokers say to each other: names, payloads, formats. Pure: no I/O."""
