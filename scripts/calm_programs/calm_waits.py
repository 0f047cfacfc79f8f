"""One rank waits for something outside the training for up to a minute, and all others wait for that rank."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import http.server
import multiprocessing
import os
import queue
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from calm_kit import DIR, RANK, amid_training, by_sockets, by_torch, connected, listening, nap, program, say, seconds


def _later(at_scale_1: float, do: object) -> threading.Timer:
    timer = threading.Timer(seconds(at_scale_1), do)  # type: ignore[arg-type]
    timer.daemon = True
    timer.start()
    return timer


@program(60)
def loader_retry_after() -> None:
    """The loader is told to come back in a minute (Retry-After) and sleeps in the rank's own thread."""
    from torch.utils.data import DataLoader, Dataset

    class Remote(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 48

        def __getitem__(self, number: int) -> int:
            time.sleep(seconds(60 if number == 40 and RANK == 1 else 0.4))
            return number

    meet = by_torch()
    for number, _ in enumerate(DataLoader(Remote(), batch_size=1)):
        meet()
        if RANK == 0:
            say(f"step {number} loss {1 / (number + 1):.3f}")


@program(60)
def sleeps_between_steps() -> None:
    """A rank sleeps for a minute between two steps, to obey the limits of a tracking service."""
    amid_training(lambda: time.sleep(seconds(60)))


@program(50)
def flock_elsewhere() -> None:
    """A rank asks for a file lock that a helper process holds."""

    def odd() -> None:
        path = DIR / "lock"
        command = f"exec 9>{path}; flock 9; echo; sleep {seconds(50)}"
        holder = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE)
        assert holder.stdout
        holder.stdout.readline()
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        holder.wait()

    amid_training(odd)


@program(45)
def future_result() -> None:
    """A rank waits for the result of a thread's future."""
    amid_training(lambda: ThreadPoolExecutor(1).submit(nap, 45).result())


@program(55)
def queue_get() -> None:
    """A rank waits for a queue that another thread of it fills."""

    def odd() -> None:
        items: queue.Queue[int] = queue.Queue()
        _later(55, lambda: items.put(1))
        items.get()

    amid_training(odd)


@program(50)
def accept_late_client() -> None:
    """A rank listens for a client that comes late."""

    def odd() -> None:
        server = listening("late")
        _later(50, lambda: connected("late"))
        server.accept()

    amid_training(odd, meet=by_sockets())


@program(50)
def select_on_a_pipe() -> None:
    """A rank waits with select for a helper's word on a pipe."""

    def odd() -> None:
        helper = subprocess.Popen(["sh", "-c", f"sleep {seconds(50)}; echo done"], stdout=subprocess.PIPE)
        select.select([helper.stdout], [], [])
        helper.communicate()

    amid_training(odd)


@program(45)
def c_call_keeps_the_gil() -> None:
    """A C call sleeps and keeps Python's lock (ctypes.PyDLL)."""
    amid_training(lambda: ctypes.PyDLL(None).usleep(int(seconds(45) * 1e6)))


@program(50)
def condition_wait() -> None:
    """A rank waits for a condition variable that a prefetch thread signals late."""

    def odd() -> None:
        ready = threading.Condition()
        fetched = []

        def fetch() -> None:
            nap(50)
            with ready:
                fetched.append(1)
                ready.notify()

        threading.Thread(target=fetch).start()
        with ready:
            ready.wait_for(lambda: bool(fetched))

    amid_training(odd)


@program(50)
def pool_map() -> None:
    """A rank prepares an epoch with a pool of forked workers, one of which is slow."""

    def odd() -> None:
        with multiprocessing.get_context("fork").Pool(3) as pool:
            pool.map(nap, [1, 2, 50], chunksize=1)

    amid_training(odd)


@program(45)
def process_lock() -> None:
    """A rank waits for a lock of multiprocessing that its own child holds."""

    def odd() -> None:
        fork = multiprocessing.get_context("fork")
        lock, held = fork.Lock(), fork.Event()

        def hold() -> None:
            with lock:
                held.set()
                nap(45)

        child = fork.Process(target=hold)
        child.start()
        held.wait()
        with lock:
            child.join()

    amid_training(odd)


@program(50)
def fifo_without_writer() -> None:
    """A rank opens a named pipe, whose writer comes late."""

    def odd() -> None:
        path = DIR / "fifo"
        os.mkfifo(path)
        writer = subprocess.Popen(["sh", "-c", f"sleep {seconds(50)}; echo shard > {path}"])
        path.read_text()
        writer.wait()
        path.unlink()

    amid_training(odd)


@program(60)
def shard_cache() -> None:
    """A worker looks once a second whether another job has filled the shard cache."""

    def odd() -> None:
        ready = DIR / "shard-ready"
        _later(60, ready.touch)
        while not ready.exists():
            nap(1)
        ready.unlink()

    amid_training(odd)


@program(60)
def staging_in_a_subprocess() -> None:
    """A rank stages data by `tar | gzip` through a slow reader, and waits for the child."""
    command = f"tar c {os.__file__} 2>/dev/null | gzip | (sleep {seconds(60)}; cat > /dev/null)"
    amid_training(lambda: subprocess.run(["bash", "-c", command], check=True))


@program(50)
def slow_download() -> None:
    """A rank reads an HTTP answer that comes after most of a minute."""

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nap(50)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"shard")

        def log_message(self, *_: object) -> None:
            pass

    def odd() -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read()
        server.shutdown()

    amid_training(odd)


@program(50)
def thread_join() -> None:
    """A rank waits for the thread that uploads its checkpoint."""

    def odd() -> None:
        upload = threading.Thread(target=nap, args=(50,))
        upload.start()
        upload.join()

    amid_training(odd)


@program(50)
def asyncio_gather() -> None:
    """A rank collects answers of a reward service with asyncio, the last of which comes late."""

    async def odd() -> None:
        await asyncio.gather(*(asyncio.sleep(seconds(wait)) for wait in (1, 10, 50)))

    amid_training(lambda: asyncio.run(odd()))


@program(45)
def database_locked() -> None:
    """A rank writes to an sqlite file that another process has locked, with a timeout of two minutes."""

    def odd() -> None:
        path = DIR / "trials.db"
        code = (
            f"import sqlite3,time; d=sqlite3.connect({str(path)!r}); d.execute('begin exclusive'); "
            f"print(flush=True); time.sleep({seconds(45)}); d.commit()"
        )
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert holder.stdout
        holder.stdout.readline()
        with sqlite3.connect(path, timeout=120) as base:
            base.execute("create table if not exists trial (number)")
        holder.communicate()

    amid_training(odd)


@program(50)
def sigwait() -> None:
    """A rank waits for a signal of its helper (signal.sigwait)."""

    def odd() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        helper = subprocess.Popen(["sh", "-c", f"sleep {seconds(50)}; kill -USR2 {os.getpid()}"])
        signal.sigwait([signal.SIGUSR2])
        helper.wait()

    amid_training(odd, meet=by_sockets())


@program(60)
def remote_shell() -> None:
    """A rank waits for a command that runs elsewhere, by a child like ssh with a pipe on its input."""

    def odd() -> None:
        command = ["bash", "-c", f"exec -a ssh-loader-host sleep {seconds(60)}"]
        subprocess.run(command, stdin=subprocess.PIPE, check=True)

    amid_training(odd, meet=by_sockets())


@program(50)
def semaphore_of_licences() -> None:
    """A rank waits for one of few licences, which a thread returns late."""

    def odd() -> None:
        licences = threading.Semaphore(0)
        _later(50, licences.release)
        licences.acquire()

    amid_training(odd)


@program(55)
def busy_polling() -> None:
    """A rank asks a status file without a pause: one processor is busy, nothing else moves."""

    def odd() -> None:
        until_s = time.monotonic() + seconds(55)
        while time.monotonic() < until_s:
            (DIR / "never-there").exists()
            time.sleep(0.002)

    amid_training(odd)
