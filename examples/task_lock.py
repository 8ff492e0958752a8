"""A timer fires in three places at once: one of them does the work, and nobody for a while after it.

Prints: of 3 timers, 1 cleaned up
Prints: a second later it is still too soon
"""

from concurrent.futures import ThreadPoolExecutor

from dibs.sync import AcquireTimeout, TaskLock, connect


def on_timer(cleaning: TaskLock) -> bool:
    """What each timer does; tell whether it was this one's turn."""
    try:
        with cleaning:
            return True  # here the work would be done
    except AcquireTimeout:
        return False


def main() -> None:
    with connect() as client:
        cleaning = client.task_lock("clean-up", min_hold="1m", max_hold="10m")
        with ThreadPoolExecutor(3) as timers:
            cleaned = sum(timers.map(on_timer, [cleaning] * 3))
        print(f"of 3 timers, {cleaned} cleaned up")
        if not on_timer(cleaning):
            print("a second later it is still too soon")


if __name__ == "__main__":
    main()
