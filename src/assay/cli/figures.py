"""Figures as people read them."""

from __future__ import annotations

import math
from typing import Any

from assay.core.number import as_float, decode_number

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """A number of bytes, decimal units, three digits.

    >>> size(999), size(1_234_567), size(5.0e12)
    ('999 bytes', '1.23 MB', '5 TB')
    """
    power = 0
    while abs(count) >= 999.5 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {UNITS[power]}"


def figure(value: float) -> str:
    """Four significant digits.

    >>> figure(0.000123456), figure(12.3456), figure(float("inf"))
    ('1.235e-04', '12.35', 'inf')
    """
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.3e}"


def ratio(value: float, reference: float) -> str:
    """`value` over `reference`, three digits; a dash where there is nothing to compare with.

    >>> ratio(9, 2), ratio(1, 0)
    ('4.5', '-')
    """
    return f"{value / reference:.3g}" if reference else "-"


def number(encoded: Any) -> float:
    """A certificate's number as a float, for display."""
    return as_float(decode_number(encoded))


def share(part: int, whole: int) -> str:
    """A share in per cent, or the plain word when there is nothing to share.

    >>> share(1, 8), share(0, 0)
    ('12.5 %', 'none')
    """
    return f"{100 * part / whole:.4g} %" if whole else "none"
