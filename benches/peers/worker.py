"""A worker process that locks with redis-py. src/worker.rs lists its instructions and answers; REDIS_URL names the server."""

import os
import platform
import sys
import threading
import time

try:
    import redis
    from redis.lock import Lock
except ImportError:
    print("failed redis-py is missing; `make bench` installs it", flush=True)
    sys.exit(1)

WARMING_PAIRS = 3
# As many connections as threads may need; its pool refuses more than a hundred by default.
SERVER = redis.Redis.from_url(os.environ["REDIS_URL"], max_connections=1000)

threads = 0
lease = 0.0
held = {}


def lock(key):
    return Lock(SERVER, key, timeout=lease)


def answer(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def all_of(count, work):
    """Runs the work on so many threads at once, and returns each thread's result."""
    results, failures = [None] * count, []

    def run(n):
        try:
            results[n] = work(n)
        except Exception as error:
            failures.append(error)

    each = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    if failures:
        raise failures[0]
    return results


def warm():
    def some(n):
        own = lock(f"warm:{os.getpid()}:{n}")
        for _ in range(WARMING_PAIRS):
            own.acquire()
            own.release()

    all_of(threads, some)


def pairs(keys, millis):
    began = time.monotonic_ns()
    end = began + int(millis) * 1_000_000

    def run(n):
        own, releases, left = lock(f"{keys}:{n}"), [], time.monotonic_ns()
        while left < end:
            own.acquire()
            left = time.monotonic_ns()
            own.release()
            releases.append(time.monotonic_ns() - left)
        return releases

    each = all_of(threads, run)
    took = time.monotonic_ns() - began
    releases = sorted(release for some in each for release in some)
    answer(f"pairs {len(releases)} {took} {releases[len(releases) * 99 // 100]}")


def hold_for(nanos):
    """Sleeps through one half and spins through the other: a sleep that overshoots would make a hold longer."""
    end = time.monotonic_ns() + nanos
    time.sleep(nanos / 2e9)
    while time.monotonic_ns() < end:
        pass


def acquisitions(again, key, hold, count, start, last):
    hold, start, last = int(hold) * 1000, int(start), int(last)
    end = start + last * 1_000_000

    def run(n):
        own, mine = lock(key), []
        begin = start if again else start + n * last
        time.sleep(max(0, begin - time.monotonic_ns()) / 1e9)
        while time.monotonic_ns() < end if again else not mine:
            own.acquire()
            entered = time.monotonic_ns()
            if not again or entered < end:
                hold_for(hold)
                mine.append((entered, time.monotonic_ns()))
            own.release()
        return mine

    done = all_of(int(count), run)
    lines = [f"acquisition {n} {entered} {left}" for n, mine in enumerate(done) for entered, left in mine]
    answer("\n".join([*lines, f"done {key}"]))


def hold(key, release):
    own = lock(key)
    own.acquire()
    answer(f"held {key}")
    release.wait()
    left = time.monotonic_ns()
    own.release()
    answer(f"released {key} {left}")


def job(work, *arguments):
    def run():
        try:
            work(*arguments)
        except Exception as error:
            answer(f"failed {type(error).__name__}: {error}".replace("\n", " "))

    threading.Thread(target=run, daemon=True).start()


def open_up(count, millis):
    global threads, lease
    threads, lease = int(count), int(millis) / 1000
    warm()
    answer(f"ready redis-py {redis.__version__}, Python {platform.python_version()}")


def warm_up():
    warm()
    answer("warm")


for line in sys.stdin:
    verb, *words = line.split()
    if verb == "open":
        job(open_up, *words)
    elif verb == "warm":
        job(warm_up)
    elif verb == "pairs":
        job(pairs, *words)
    elif verb in ("once", "loop"):
        job(acquisitions, verb == "loop", *words)
    elif verb == "acquire":
        held[words[0]] = threading.Event()
        job(hold, words[0], held[words[0]])
    elif verb == "release":
        held.pop(words[0]).set()
    elif verb == "cpu":
        answer(f"cpu {time.process_time_ns()}")
    else:
        answer(f"failed no such instruction: {verb}")

# The conductor has closed the input: threads that still run are not waited for.
os._exit(0)
