"""How fast networks under `torch.backends.cudnn.benchmark` train when their memory is limited: needs a GPU.

    python -m lab.tries.measure --requests requests.json --output rows.jsonl [--before rows.jsonl]

Every network is trained without a limit, without autotuning, at its request without tries, and then at limits
between which the smallest is found under which it is as fast as without (`lab.tries.score` prints the table).
The limit is MPS's, as on our nodes, or with the method "fraction" that of PyTorch's allocator. Each point is
a process of its own; the next ones start up while one trains, and only one trains at a time. `requests.json`
has the request of each network in MiB (`python -m lab.tries.score --requests` prints it).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Callable, Dict, Generator, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from lab.tries.networks import NETWORKS

Row = Dict[str, Any]
WARM_STEPS, LEAST_STEPS, TIMED_S, MOST_S = 3, 6, 0.8, 4.0
AS_FAST = 0.95
"""Of the speed without a limit: what a job needs is the smallest limit with this."""
LADDER = (0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Limits, as multiples of what steps take once every algorithm is chosen."""
PREPARED = 4
POINT_S = 60.0
USUAL_CONTEXT_MIB = 764
MIB = 1 << 20


class Point(NamedTuple):
    """One training of a network."""

    network: str
    limit_mib: Optional[int] = None
    """Of the whole process; None without a limit."""
    method: str = "mps"
    benchmark: bool = True
    context_mib: int = 0
    """Which part of the limit PyTorch's allocator does not see: for the method "fraction"."""


def points(
    network: str, request_mib: int, fraction: bool, before: Sequence[Row] = ()
) -> Generator[Point, Row, None]:
    """What to measure of a network, one after the other, each answered by its row; not what was `before`."""
    known = {Point(*(row[name] for name in Point._fields)): row for row in before}

    def once(point: Point) -> Generator[Point, Row, Row]:
        return known[point] if point in known else (yield point)

    free = yield from once(Point(network))
    yield from once(Point(network, benchmark=False))
    if "speed" not in free:
        return
    context = free["process_mib"] - free["reserved_mib"] if free["process_mib"] else USUAL_CONTEXT_MIB
    tried = free["peak_reserved_mib"] + context
    needed = free["steady_reserved_mib"] + context

    def as_fast(row: Row) -> bool:
        return bool(row.get("speed", 0) >= AS_FAST * free["speed"])

    asked = yield from once(Point(network, request_mib))
    if fraction:
        yield Point(network, request_mib, "fraction", context_mib=context)
    limits = sorted({round(needed * step) for step in LADDER if needed * step < tried + 64})
    limits = [at for at in limits if (at < request_mib) == as_fast(asked)]
    while limits:
        middle = len(limits) // 2
        row = yield Point(network, limits[middle])
        limits = limits[:middle] if as_fast(row) else limits[middle + 1 :]


class Worker:
    """A process that is ready to train at a point."""

    def __init__(self, point: Point, train: Callable[[Point, Connection], Row]) -> None:
        self.point = point
        here, there = multiprocessing.Pipe()
        self._pipe = here
        self._process = multiprocessing.get_context("fork").Process(
            target=_work, args=(point, there, train), daemon=True
        )
        self._process.start()
        there.close()

    def row(self) -> Row:
        """Train, and say what came of it."""
        found: Row = {**self.point._asdict()}
        started = time.monotonic()
        peaks = [0]
        ended = threading.Event()
        looks = threading.Thread(target=_look, args=(self._process.pid, peaks, ended))
        looks.start()
        try:
            for _ in ("ready", "done"):
                if not self._pipe.poll(POINT_S):
                    raise EOFError("no answer in time")
                found.update(self._pipe.recv())
                found["process_mib"] = _process_mib(self._process.pid)
                self._pipe.send("go")
                if "failed" in found:
                    break
        except (EOFError, OSError) as error:
            found["error"] = f"{type(error).__name__}: {error}"
        ended.set()
        looks.join()
        self.stop()
        return {**found, "peak_mib": peaks[0], "seconds": round(time.monotonic() - started, 2)}

    def stop(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(3)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(point: Point, pipe: Connection, train: Callable[[Point, Connection], Row]) -> None:
    try:
        pipe.send(train(point, pipe))
        pipe.recv()
    except (EOFError, OSError):
        pass  # the parent has no time left


def _look(pid: Optional[int], peaks: List[int], ended: threading.Event) -> None:
    """Keep the most that NVML shows for a process; short tries may lie between two looks."""
    while not ended.wait(0.02):
        peaks[0] = max(peaks[0], _process_mib(pid))


def _process_mib(pid: Optional[int]) -> int:
    """What NVML shows now; 0 where it cannot say."""
    from lab.scripts.gpu_memory import process_peaks

    try:
        return process_peaks(pid or 0) // MIB
    except Exception as error:  # noqa: BLE001 - NVML's own class, or none installed
        print(f"NVML: {error}", file=sys.stderr)
        return 0


def train_on_gpu(point: Point, pipe: Connection) -> Row:
    """Prepare, wait for the turn, train."""
    import torch

    if point.limit_mib and point.method == "mps":
        os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={point.limit_mib}M"
    torch.set_num_threads(2)
    found: Row = {}
    try:
        if point.limit_mib and point.method == "fraction":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction((point.limit_mib - point.context_mib) * MIB / total)
        torch.nn.Conv2d(8, 8, 3).cuda()(torch.zeros(1, 8, 8, 8, device="cuda")).sum().backward()
        torch.backends.cudnn.benchmark = point.benchmark
        step = NETWORKS[point.network]()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        found.update(torch=torch.__version__, free_mib=free // MIB, total_mib=total // MIB)
        pipe.send(found)
        pipe.recv()
        found = {}
        _train(step, torch, found)
        if point.limit_mib is None:
            found.update(_steady(step, torch))
        found["reserved_mib"] = torch.cuda.memory_reserved() // MIB
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        found["failed"] = f"{type(error).__name__}: {str(error)[:160]}"
    return found


def _train(step: Callable[[], Any], torch: Any, found: Row) -> None:
    def timed() -> float:
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    found["first_steps_s"] = [round(timed(), 3) for _ in range(WARM_STEPS)]
    found.update(_stats(torch, "tries_"))
    times: List[float] = []
    began = time.perf_counter()
    while len(times) < LEAST_STEPS or time.perf_counter() - began < TIMED_S:
        times.append(timed())
        if time.perf_counter() - began > MOST_S:
            break
    middle = sorted(times)[len(times) // 2]
    found.update(_stats(torch, ""), steps=len(times), speed=1 / middle, mean_speed=len(times) / sum(times))


def _stats(torch: Any, prefix: str) -> Row:
    stats = torch.cuda.memory_stats()
    return {
        f"{prefix}peak_reserved_mib": torch.cuda.max_memory_reserved() // MIB,
        f"{prefix}peak_allocated_mib": torch.cuda.max_memory_allocated() // MIB,
        f"{prefix}retries": stats.get("num_alloc_retries", 0),
        f"{prefix}ooms": stats.get("num_ooms", 0),
    }


def _steady(step: Callable[[], Any], torch: Any) -> Row:
    """What steps take when every algorithm is chosen."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    return {
        "steady_reserved_mib": torch.cuda.max_memory_reserved() // MIB,
        "steady_allocated_mib": torch.cuda.max_memory_allocated() // MIB,
    }


def measure(
    requests: Mapping[str, int],
    write: Callable[[Row], None],
    seconds: float,
    before: Sequence[Row] = (),
    train: Callable[[Point, Connection], Row] = train_on_gpu,
) -> None:
    """All networks in turn, until the time is over."""
    end = time.monotonic() + seconds
    plans = [
        points(name, request, number == 0, [row for row in before if "speed" in row])
        for number, (name, request) in enumerate(requests.items())
    ]
    # The first points of all networks come before the second of any: time may be over before all are done.
    waiting = [(0, number, next(plan)) for number, plan in enumerate(plans)]
    ready: List[Any] = []
    while waiting or ready:
        while waiting and len(ready) < PREPARED:
            stage, number, point = heappop(waiting)
            ready.append((stage, number, Worker(point, train)))
        stage, number, worker = ready.pop(0)
        if time.monotonic() > end:
            worker.stop()
            waiting = []
            continue
        row = worker.row()
        write(row)
        try:
            heappush(waiting, (stage + 1, number, plans[number].send(row)))
        except StopIteration:
            continue


@contextmanager
def mps_daemon() -> Iterator[None]:
    """An MPS daemon of our own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("CUDA_MPS_PIPE_DIRECTORY", "pipe"), ("CUDA_MPS_LOG_DIRECTORY", "log")):
            os.environ[name] = os.path.join(folder, part)
            os.mkdir(os.environ[name])
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, timeout=30)


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.tries.measure", description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=Path, required=True, help="MiB by network")
    parser.add_argument("--output", type=Path, required=True, help="rows are added to it, a line each")
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--only", nargs="*", help="networks, in this order")
    parser.add_argument("--before", type=Path, help="rows of an earlier run, which are not measured again")
    args = parser.parse_args(argv)
    asked = json.loads(args.requests.read_text())
    requests = {name: asked[name] for name in args.only or NETWORKS}

    def write(row: Row) -> None:
        with args.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    before = args.before.read_text().splitlines() if args.before else []
    with mps_daemon():
        measure(requests, write, args.seconds, [json.loads(line) for line in before])
    return 0


if __name__ == "__main__":
    sys.exit(main())
