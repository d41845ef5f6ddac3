"""Every way assay says no, in one place.

A message is one sentence that says what is wrong, where, and what to do.  The command line prints it
after ``assay: `` and leaves with :attr:`AssayError.exit_code`; a traceback is shown only on request.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AssayError(Exception):
    """Base of every error that assay raises on purpose."""

    exit_code = 2


class InputError(AssayError):
    """A file, an argument or a value cannot be used; the message names it and the way out."""


class BudgetError(AssayError):
    """The asked size or error cannot be reached; the message gives the least that can."""

    exit_code = 1


class RejectedError(AssayError):
    """A certificate, digest or delta does not say the truth about its subject."""

    exit_code = 1


class UndecidedError(AssayError):
    """Precision or effort ran out before a comparison was decided."""

    exit_code = 3


class UnknownIdError(AssayError):
    """No claim, mission or choice of that name; carries the nearest names.

    >>> str(UnknownIdError("claim", "dare.momnts", ["dare.moments", "dare.tail"]))
    "no claim is called 'dare.momnts'; did you mean 'dare.moments'?"
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(f"no {kind} is called {name!r}{hint}")
        self.near = tuple(near)


class MissingExtraError(AssayError):
    """A heavy library is needed and absent; the message names the extra that brings it.

    >>> str(MissingExtraError("torch", "calibration"))
    "calibration needs the extra 'torch': pip install 'assay-ml[torch]'"
    """

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the extra {extra!r}: pip install 'assay-ml[{extra}]'")
        self.extra = extra
