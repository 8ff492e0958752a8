"""A program whose tasks or threads contend for one lock, and fail if another holds it, too."""

WORKER = """
import asyncio, os, sys, threading
import dibs, dibs.sync

url, marker, world, users, cycles = sys.argv[1:4] + [int(each) for each in sys.argv[4:]]

def alone(lease):
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if somebody is here
    lease.ensure()
    os.unlink(marker)
    print(lease.token, flush=True)

async def main():
    async with dibs.connect(url) as client:
        async def user():
            for _ in range(cycles):
                async with client.lock("contended") as lease:
                    alone(lease)
                    await asyncio.sleep(0)
        await asyncio.gather(*(user() for _ in range(users)))

def use(client):
    for _ in range(cycles):
        with client.lock("contended") as lease:
            alone(lease)

if world == "async":
    asyncio.run(main())
else:
    with dibs.sync.connect(url) as client:
        threads = [threading.Thread(target=use, args=(client,)) for _ in range(users)]
        for each in threads: each.start()
        for each in threads: each.join()
"""

USERS, CYCLES = 4, 25
