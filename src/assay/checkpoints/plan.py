"""What is done with each tensor, decided before any of it is done.

A `TensorPlan` is a function of the two checkpoints' headers and the settings alone, so that ``--dry-run``
can print it, a worker can carry it out, and the delta file can record it.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from assay.checkpoints.codec import DTYPES
from assay.checkpoints.factors import Factors
from assay.checkpoints.header import TensorInfo
from assay.checkpoints.io import Source
from assay.core.errors import InputError

BITS = (16, 8, 4, 3, 2)
GRID = 0
"""In place of bits: a grid of steps chosen by energies, and codes as short as their entropy."""
MASKS = ("random", "derandomised")
CODINGS = ("entropy", "raw")
KEEP_MAPS = ("uniform", "tensor", "factored")
KEEP_ONE = 1 << 32
"""Keep threshold of a tensor of which every entry survives."""

GROUP = 64
"""Survivors that share one quantiser scale, on average."""

LOSSY = ("dropped", "masked", "factored")
"""Treatments that lose something; all others give the tensor back bit for bit."""


def span_of(threshold: int) -> int:
    """Entries that share one quantiser scale, so that about `GROUP` of them survive.

    >>> span_of(KEEP_ONE), span_of(KEEP_ONE // 10), span_of(0)
    (64, 641, 1048576)
    """
    return min(1 << 20, -(-GROUP * KEEP_ONE // threshold)) if threshold else 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked of a pack.

    Attributes:
        drop_prob: the share of entries dropped, in [0, 1]; rounded to a multiple of 2**-32.
        rescale: ``dare`` (survivors divided by the keep probability: unbiased), ``optimal`` (least mean
            square, biased), or the divisor itself.
        mask: ``random`` (drawn from the seed, costs no bits) or ``derandomised`` (chosen, stored).
        bits: of a survivor: 16, 8, 4, 3 or 2; or `GRID` (0), steps of a grid that energies choose tensor by tensor.
        coding: ``entropy`` (each stream coded where that is smaller) or ``raw``.
        lossless: store the exact difference of every tensor; nothing is dropped.
        seed: any integer >= 0.
        include: patterns of tensor names; only these lose something (default: matrices and larger).
        exclude: patterns of tensor names that are kept exactly.
        gamma: miss probability of each tail bound, strictly between 0 and 1; kept as a Fraction.
        keep_map: how keep probabilities may vary: ``uniform``, ``tensor`` or ``factored`` (by row and column too);
            all but ``uniform`` at a given `drop_prob` need energies.
        max_drift: predicted drift allowed, over the fine-tune's own effect; takes the place of `drop_prob`.
        max_size: bytes allowed, by estimate; takes the place of `drop_prob`.
    """

    drop_prob: float | Fraction = Fraction(9, 10)
    rescale: str | float = "dare"
    mask: str = "random"
    bits: int = 16
    coding: str = "entropy"
    lossless: bool = False
    seed: int = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gamma: float | Fraction = Fraction(1, 100)
    keep_map: str = "uniform"
    max_drift: float | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.drop_prob):
            raise InputError(f"the drop probability {self.drop_prob!r} is no number in [0, 1]")
        if not 0 <= self.drop_prob <= 1:
            raise InputError(
                f"the drop probability {float(self.drop_prob):g} is outside [0, 1]; 0.9 drops nine entries in ten"
            )
        if self.bits not in BITS and self.bits != GRID:
            raise InputError(
                f"survivors of {self.bits} bits are not offered; choose one of {', '.join(map(str, BITS))}"
            )
        if self.mask not in MASKS:
            raise InputError(f"the mask {self.mask!r} is none of {', '.join(MASKS)}")
        if self.coding not in CODINGS:
            raise InputError(f"the coding {self.coding!r} is none of {', '.join(CODINGS)}")
        if isinstance(self.rescale, str) and self.rescale not in ("dare", "optimal"):
            raise InputError(f"the rescale {self.rescale!r} is neither 'dare', 'optimal' nor a number")
        if not isinstance(self.rescale, str) and not (_is_number(self.rescale) and self.rescale > 0):
            raise InputError(
                f"the rescale {self.rescale!r} must be a finite number > 0: survivors are divided by it"
            )
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InputError(f"the seed {self.seed!r} must be an integer >= 0")
        self._check_budget()
        if not _is_number(self.gamma) or not 0 < self.gamma < 1:
            raise InputError(f"the miss probability {self.gamma!r} must lie strictly between 0 and 1")
        object.__setattr__(self, "gamma", Fraction(self.gamma))
        if self.rescale == "dare" and self.threshold == 0 and not self.lossless:
            # Everything is dropped and nothing survives to be rescaled: apply gives the base back.
            object.__setattr__(self, "rescale", 1.0)

    def _check_budget(self) -> None:
        if self.keep_map not in KEEP_MAPS:
            raise InputError(f"the keep map {self.keep_map!r} is none of {', '.join(KEEP_MAPS)}")
        if self.max_drift is not None and self.max_size is not None:
            raise InputError("give a drift or a size to stay within, not both")
        if self.max_drift is not None and not (_is_number(self.max_drift) and self.max_drift > 0):
            raise InputError(f"the drift {self.max_drift} must be a finite number above 0")
        if self.max_size is not None and not (_is_number(self.max_size) and self.max_size >= 1):
            raise InputError(f"a delta of {self.max_size} bytes cannot be; give a size above 0")
        if self.planned and (self.mask != "random" or self.rescale != "dare" or self.lossless):
            raise InputError(
                "plans by energies draw their masks and divide by the keep probability: "
                "use --mask random and --rescale dare, without --lossless"
            )

    @property
    def planned(self) -> bool:
        """Whether keep probabilities come from energies."""
        budget = self.max_drift is not None or self.max_size is not None
        return budget or self.keep_map != "uniform" or self.bits == GRID

    @property
    def threshold(self) -> int:
        """The keep probability as a multiple of 2**-32.

        >>> Settings(drop_prob=0.5).threshold == 2**31
        True
        """
        return round((1 - Fraction(self.drop_prob)) * KEEP_ONE)

    def excludes(self, name: str) -> bool:
        """Whether the user asked that this tensor be kept exactly."""
        return _matches(name, self.exclude)

    def may_lose(self, info: TensorInfo) -> bool:
        """Whether the user lets this tensor lose something."""
        if self.excludes(info.name):
            return False
        least = 1 if self.bits == GRID else 2
        return _matches(info.name, self.include) if self.include else len(info.shape) >= least

    @property
    def span(self) -> int:
        """Entries that share one quantiser scale, so that about `GROUP` of them survive."""
        return span_of(self.threshold)


def _is_number(value: object) -> bool:
    """Whether this is a finite number whose value `Fraction` keeps exactly."""
    return isinstance(value, int | float | Fraction) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What is done with one tensor.

    Attributes:
        info: where the tensor lies in the fine-tuned checkpoint; its name, dtype and shape.
        treatment: ``dropped``, ``masked`` or ``factored`` (lossy); ``lossless`` (exact difference) or ``exact`` (no base);
            ``alias`` of another tensor, where the base lacks it.  The encoder turns a tensor that did not change into
            ``unchanged`` and a copy into ``alias``.
        base: the tensor in the base; None for ``exact`` and for a planned ``alias``.
        threshold: keep probability times 2**32.
        rescale: divisor of the survivors; None until the optimal one is known.
        bits: of a survivor.
        span: entries that share one scale.
        factors: of ``factored``, the keep thresholds by row and column; `threshold` is then their mean.
        step: of ``factored`` with bits `GRID`, the spacing of the grid.
        of: of a planned ``alias``, the tensor that it repeats, which comes before it.
    """

    info: TensorInfo
    treatment: str
    base: TensorInfo | None
    threshold: int = KEEP_ONE
    rescale: float | None = 1.0
    bits: int = 16
    span: int = GROUP
    factors: Factors | None = None
    step: float | None = None
    of: str | None = None

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.info.name

    @property
    def base_rows(self) -> int:
        """Rows that have a counterpart in the base; those beyond are stored exactly, and the base's beyond play no part."""
        return min(self.base.rows, self.info.rows) if self.base is not None else 0

    @property
    def drop_prob(self) -> Fraction:
        """The exact drop probability; of ``factored`` the mean one, rounded."""
        return 1 - Fraction(self.threshold, KEEP_ONE)


def plan_tensors(base: Source, finetuned: Source, settings: Settings) -> tuple[TensorPlan, ...]:
    """One plan for each tensor of the fine-tuned checkpoint, in file order.

    Scalar, empty and new tensors are exact; tensors of one dimension (norm gains, biases), excluded ones and
    those of a type that the codec has no arithmetic for (integers, booleans, the FNUZ kinds of fp8) are lossless;
    the rest is dropped, or all of it lossless where that was asked.

    Raises:
        InputError: a pattern matches no tensor.
    """
    _check_patterns(settings.include, finetuned, "--include")
    _check_patterns(settings.exclude, finetuned, "--exclude")
    return tuple(_plan(base.tensors.get(info.name), info, settings) for info in finetuned.tensors.values())


def _plan(base: TensorInfo | None, info: TensorInfo, settings: Settings) -> TensorPlan:
    if base is None or not info.shape or not info.count:
        return TensorPlan(info, "exact", None)
    if settings.lossless or info.dtype not in DTYPES or not settings.may_lose(info):
        return TensorPlan(info, "lossless", base)
    rescale: float | None
    if settings.rescale == "dare":
        rescale = settings.threshold / KEEP_ONE
    else:
        rescale = None if settings.rescale == "optimal" else float(settings.rescale)
    return TensorPlan(
        info,
        "masked" if settings.mask == "derandomised" else "dropped",
        base,
        settings.threshold,
        rescale,
        settings.bits or 16,
        settings.span,
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_patterns(patterns: Sequence[str], source: Source, option: str) -> None:
    for pattern in patterns:
        if not fnmatch.filter(source.tensors, pattern):
            example = next(iter(source.tensors), "none")
            raise InputError(
                f"{option} {pattern!r} matches no tensor of {source.path}; a name there is {example!r}"
            )


__all__ = [
    "BITS",
    "CODINGS",
    "GRID",
    "KEEP_MAPS",
    "KEEP_ONE",
    "LOSSY",
    "MASKS",
    "Settings",
    "TensorPlan",
    "plan_tensors",
    "span_of",
]
