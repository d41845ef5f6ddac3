"""A limit on calls that do not come back by themselves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from assay.audits.target import Stopped

GRACE = 2.0
"""Seconds beyond its time that a call may take before it is cut short."""


@contextmanager
def cut_short(seconds: float, busy: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raise `Stopped` inside the block once `seconds` and a grace are over, wherever `busy` says that it may be.

    It takes a timer signal, which only the main thread can have: elsewhere, and where there are no signals, the
    block is not limited; and a single call into compiled code is not interrupted.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        if busy():
            raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0) + GRACE, GRACE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
