"""What the command line leaves out of its start."""

from __future__ import annotations

import sys


def skip_blas() -> None:
    """Load numba without scipy's BLAS, which it looks for at the first compiled call: a fifth of a start.

    Only compiled `np.dot` and `np.linalg` need it, and no loop of ours calls them.  The choice holds for the whole
    process, so it is the command line's to make, not the library's.
    """
    if "numba.np.arraymath" in sys.modules or "scipy.linalg" in sys.modules:
        return
    import numba  # before the search is blocked: it looks at scipy's version

    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # an import of it fails while this stands
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        del sys.modules["scipy.linalg"]
