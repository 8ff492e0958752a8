"""Transfers between accounts, by many threads at once: no order of the names makes them wait in a circle.

Prints: after 200 transfers there are 300 in all
"""

import random
import threading

from dibs.sync import AllOf, Client, connect

accounts = {"alice": 100, "bob": 100, "carol": 100}


def transfer(client: Client, source: str, target: str, amount: int) -> None:
    """Move money; nobody else touches either account meanwhile."""
    locks = (client.lock(f"account:{name}") for name in (source, target))
    with AllOf(*locks, wait="30s") as leases:
        leases.ensure()
        accounts[source] -= amount
        accounts[target] += amount


def clerk(client: Client, seed: int) -> None:
    """Many transfers, each between two accounts in any order."""
    draw = random.Random(seed)
    for _ in range(25):
        source, target = draw.sample(sorted(accounts), 2)
        transfer(client, source, target, draw.randrange(1, 10))


def main() -> None:
    """Let eight clerks work at once, and count the money."""
    with connect("memory://bank") as client:
        clerks = [threading.Thread(target=clerk, args=(client, seed)) for seed in range(8)]
        for thread in clerks:
            thread.start()
        for thread in clerks:
            thread.join()
    print("after 200 transfers there are", sum(accounts.values()), "in all:", accounts)


if __name__ == "__main__":
    main()
