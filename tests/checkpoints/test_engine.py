"""Order, bounded look-ahead and errors of the engines."""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from assay.checkpoints.encode import RowDigest
from assay.checkpoints.engine import ordered
from assay.core.errors import InputError


def square(n):
    time.sleep(0.002 * (n % 3))
    return n * n


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(ordered(square, range(30), workers=workers)) == [n * n for n in range(30)]


def test_tasks_are_taken_as_they_are_needed():
    taken = itertools.count()
    results = ordered(square, (next(taken) for _ in range(1000)), workers=2)
    for _ in range(3):
        next(results)
    assert next(taken) < 20


def test_a_failing_task_stops_the_run_and_leaves_no_thread():
    def fail(n):
        if n == 3:
            raise InputError("three")
        return n

    with pytest.raises(InputError, match="three"):
        list(ordered(fail, range(50), workers=2))
    assert not [t for t in threading.enumerate() if t.name.startswith("assay") and t.is_alive()]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"engine": "cloud"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        ordered(square, [1], **wrong)


@pytest.mark.ray
def test_ray_gives_the_same_results():
    pytest.importorskip("ray")
    assert list(ordered(math.isqrt, range(40), workers=2, engine="ray")) == [math.isqrt(n) for n in range(40)]


def test_a_digest_sees_rows_in_order_from_any_thread():
    rows = np.arange(600, dtype=np.uint16).reshape(60, 10)
    digest = RowDigest()
    starts = list(range(0, 60, 4))
    with ThreadPoolExecutor(4) as pool:
        for start in starts:
            pool.submit(digest.update, start, start + 4, rows[start : start + 4])
    assert digest.hexdigest() == hashlib.sha256(rows.tobytes()).hexdigest()


def test_an_abandoned_digest_lets_those_who_wait_go():
    digest = RowDigest()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(digest.update, 4, 8, np.zeros((4, 2), np.uint8))
        digest.abandon()
        with pytest.raises(RuntimeError, match="earlier block"):
            late.result(timeout=10)
