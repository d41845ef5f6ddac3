"""Where tasks run: in this process's threads, or on a Ray cluster through joblib.

Results come back in the order of the tasks whatever the engine and the number of workers, so outputs are the
same bytes.  The compiled loops, zlib, sha256 and file reads all release the interpreter's lock.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from assay.core.errors import InputError, MissingExtraError

T = TypeVar("T")
R = TypeVar("R")
ENGINES = ("local", "ray")
Progress = Callable[[int, int, str], None]
"""Called with the work done, the work in total, and what is being done."""

_AHEAD = 2
"""Tasks in flight per worker: enough to keep them busy, few enough to bound memory."""


def silent(done: int, total: int, what: str) -> None:
    """The `Progress` of a run that nobody watches."""


def default_workers() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered(
    function: Callable[[T], R], tasks: Iterable[T], *, workers: int | None = None, engine: str = "local"
) -> Iterator[R]:
    """`function` of each task, in order, computed by `workers` at once.

    Raises:
        InputError: no such engine, or fewer than one worker.
        MissingExtraError: the engine is ``ray`` and Ray is not installed.
    """
    count = default_workers() if workers is None else workers
    if count < 1:
        raise InputError(f"{count} workers cannot do anything; ask for at least one")
    if engine not in ENGINES:
        raise InputError(f"the engine {engine!r} is none of {', '.join(ENGINES)}")
    if engine == "ray":
        return _on_ray(function, tasks, count)
    return map(function, tasks) if count == 1 else _in_threads(function, tasks, count)


def _in_threads(function: Callable[[T], R], tasks: Iterable[T], workers: int) -> Iterator[R]:
    waiting: deque[Future[R]] = deque()
    supply = iter(tasks)
    with ThreadPoolExecutor(workers, thread_name_prefix="assay") as pool:
        try:
            for task in supply:
                waiting.append(pool.submit(function, task))
                if len(waiting) >= workers * (1 + _AHEAD):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _on_ray(function: Callable[[T], R], tasks: Iterable[T], workers: int) -> Iterator[R]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise MissingExtraError("ray", "the engine 'ray'") from None
    from joblib import Parallel, delayed, parallel_config

    if not ray.is_initialized():
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    register_ray()
    supply = iter(tasks)
    while window := list(islice(supply, workers * 8)):
        results: list[Any]
        with parallel_config(backend="ray", n_jobs=workers):
            results = Parallel()(delayed(function)(task) for task in window)
        yield from results
