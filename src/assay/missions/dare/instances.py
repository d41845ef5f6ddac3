"""What the claims speak about: frozen, serialisable instances small enough for every mask to be enumerated.

A wider instance extends a narrower one, so a function of `Dropped` takes every kind of it.  Ranges bound what
an audit proposes; the conditions of a theorem are its premises, not its ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from assay.core.instance import Length, Range

Probability = Annotated[Fraction, Range(0, 1)]
InnerProbability = Annotated[Fraction, Range(0, 1, open_low=True, open_high=True)]
KeepProbability = Annotated[Fraction, Range(0, 1, open_low=True)]
Rescale = Annotated[Fraction, Range(0, 4, open_low=True)]
Level = Annotated[Fraction, Range(0, 100, open_low=True)]
Small = Annotated[Fraction, Range(-2, 2)]
NotNegative = Annotated[Fraction, Range(0, 4)]
Triangle = Annotated[tuple[Fraction, ...], Length(10, 10), Range(-2, 4)]


# --- one output ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients c_j = dW_j x_j of one output."""

    coefficients: Annotated[tuple[Fraction, ...], Length(0, 5), Range(-4, 4)]


@dataclass(frozen=True, slots=True)
class Dropped(Coefficients):
    """One output under DARE: entries dropped with probability drop_prob, survivors divided by 1 - drop_prob."""

    drop_prob: InnerProbability


@dataclass(frozen=True, slots=True)
class DroppedAtLevel(Dropped):
    """One output under DARE, and the level whose tail is asked."""

    level: Level


@dataclass(frozen=True, slots=True)
class DroppedWithGamma(Dropped):
    """One output under DARE, and a failure probability."""

    gamma: InnerProbability


@dataclass(frozen=True, slots=True)
class ChernoffPoint(DroppedAtLevel):
    """One output under DARE, a level, and the argument at which its moment generating function is taken."""

    argument: Annotated[Fraction, Range(0, 2)]


@dataclass(frozen=True, slots=True)
class LatticePoint(DroppedAtLevel):
    """One output under DARE, a level, the step its coefficients are rounded to, and the residual's share."""

    step: Annotated[Fraction, Range(0, 2, open_low=True)]
    share: InnerProbability


@dataclass(frozen=True, slots=True)
class Pruned(Coefficients):
    """One output with any drop probability in [0, 1] and survivors divided by any positive rescale."""

    drop_prob: Probability
    rescale: Rescale


@dataclass(frozen=True, slots=True)
class PrunedWithGamma(Pruned):
    """One pruned output, and a failure probability."""

    gamma: InnerProbability


@dataclass(frozen=True, slots=True)
class PrunedMgf(Pruned):
    """One pruned output, and an argument of its moment generating function."""

    argument: Small


# --- the Kearns-Saul coefficient -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """One drop indicator, 1 with probability drop_prob."""

    drop_prob: InnerProbability


@dataclass(frozen=True, slots=True)
class BernoulliMgf(Bernoulli):
    """One drop indicator, and an argument of its moment generating function."""

    argument: Annotated[Fraction, Range(-8, 8)]


@dataclass(frozen=True, slots=True)
class SmallerConstant(Bernoulli):
    """One drop indicator, and the share by which the constant of its bound is lowered."""

    loss: KeepProbability


@dataclass(frozen=True, slots=True)
class TwoProbabilities:
    """Two drop probabilities up to 1/2."""

    smaller: Annotated[Fraction, Range(0, Fraction(1, 2), open_low=True)]
    larger: Annotated[Fraction, Range(0, Fraction(1, 2), open_low=True)]


# --- the rescale ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RescaleChoice:
    """Output energy A, entry energy B and quantiser energy V of an output or layer, and a candidate 1/q."""

    output: Annotated[Fraction, Range(0, 240)]
    entry: Annotated[Fraction, Range(0, 240)]
    noise: Annotated[Fraction, Range(0, 24)]
    drop_prob: Probability
    inverse_rescale: NotNegative


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One weight of an output, whether it is kept, and its inputs in three calibration samples."""

    weight: Small
    keep: bool
    inputs: Annotated[tuple[Fraction, ...], Length(3, 3), Range(-2, 2)]


@dataclass(frozen=True, slots=True)
class Refit:
    """A realised mask over calibration samples, and a scalar that its survivors may be multiplied by."""

    entries: Annotated[tuple[KeptEntry, ...], Length(0, 4)]
    scalar: Annotated[Fraction, Range(-4, 4)]


# --- drop, then quantise -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """One weight, and the grid of the unbiased quantiser: {-levels..levels} scale/levels."""

    weight: Small
    scale: Annotated[Fraction, Range(0, 2, open_low=True)]
    levels: Annotated[int, Range(1, 8)]


@dataclass(frozen=True, slots=True)
class WeightAndInput:
    """One weight and the input it meets."""

    weight: Annotated[Fraction, Range(-1, 1)]
    input: Small


@dataclass(frozen=True, slots=True)
class Quantised:
    """One output whose survivors are quantised, then divided by the rescale."""

    entries: Annotated[tuple[WeightAndInput, ...], Length(0, 3)]
    drop_prob: Probability
    rescale: Rescale
    scale: Annotated[Fraction, Range(1, 2)]
    levels: Annotated[int, Range(1, 8)]


@dataclass(frozen=True, slots=True)
class QuantisedMgf(Quantised):
    """One quantised output, and an argument of its moment generating function."""

    argument: Small


@dataclass(frozen=True, slots=True)
class QuantisedWithGamma(Quantised):
    """One quantised output, and a failure probability."""

    gamma: InnerProbability


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a delta, its input's second moment, and the quantiser's step (0: stored as it is)."""

    delta: Small
    moment: NotNegative
    step: Annotated[Fraction, Range(0, 2)]


@dataclass(frozen=True, slots=True)
class Stored:
    """A packed delta, entry by entry, and a failure probability of its realised squared error."""

    entries: Annotated[tuple[StoredEntry, ...], Length(0, 3)]
    drop_prob: Probability
    rescale: Rescale
    gamma: InnerProbability


# --- layers and networks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """Weights of one output over three inputs."""

    weights: Annotated[tuple[Fraction, ...], Length(3, 3), Range(-2, 2)]


@dataclass(frozen=True, slots=True)
class DroppedLayer:
    """A layer dW [m, 3] under DARE and its inputs' second moment, as the upper triangle of a 3 x 3 matrix."""

    rows: Annotated[tuple[Row, ...], Length(1, 3)]
    second_moment: Annotated[tuple[Fraction, ...], Length(6, 6), Range(-2, 4)]
    drop_prob: Annotated[Fraction, Range(0, 1, open_high=True)]


@dataclass(frozen=True, slots=True)
class PrunedLayer:
    """A layer dW [m, 3], pruned with any rescale, and the upper triangle of its inputs' second moment."""

    rows: Annotated[tuple[Row, ...], Length(1, 3)]
    second_moment: Annotated[tuple[Fraction, ...], Length(6, 6), Range(-2, 4)]
    drop_prob: Probability
    rescale: Rescale


@dataclass(frozen=True, slots=True)
class Output:
    """Coefficients of one output among several."""

    coefficients: Annotated[tuple[Fraction, ...], Length(0, 3), Range(-4, 4)]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Several outputs of one layer at one input, and a failure probability for all of them together."""

    rows: Annotated[tuple[Output, ...], Length(1, 3)]
    drop_prob: Probability
    rescale: Rescale
    gamma: InnerProbability


@dataclass(frozen=True, slots=True)
class SquareMatrix:
    """A 2 x 2 delta, row by row, pruned; and the level that its error's operator norm may reach."""

    entries: Annotated[tuple[Fraction, ...], Length(4, 4), Range(-2, 2)]
    drop_prob: InnerProbability
    rescale: Rescale
    level: Level


@dataclass(frozen=True, slots=True)
class Part:
    """One delta of a merge: its weight, and the coefficients, drop probability and rescale of its output."""

    weight: Small
    coefficients: Annotated[tuple[Fraction, ...], Length(0, 2), Range(-4, 4)]
    drop_prob: Probability
    rescale: Rescale


@dataclass(frozen=True, slots=True)
class Merge:
    """Several deltas, each pruned with its own independent mask, then added up with weights."""

    parts: Annotated[tuple[Part, ...], Length(0, 3)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a network: its delta, the output's gradient, keep probability and quantiser step."""

    delta: Small
    gradient: Small
    keep_prob: KeepProbability
    step: Annotated[Fraction, Range(0, 2)]


@dataclass(frozen=True, slots=True)
class LinearNetwork:
    """A network whose output is linear in the packed parameters, each kept with a probability of its own."""

    parameters: Annotated[tuple[Parameter, ...], Length(0, 3)]


# --- chosen masks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Weights of one output, and the second moment: the leading block of a 4 x 4 upper triangle."""

    weights: Annotated[tuple[Fraction, ...], Length(1, 4), Range(-3, 3)]
    second_moment: Triangle


@dataclass(frozen=True, slots=True)
class PenalisedRow(RowProblem):
    """A row problem with a drop probability, a rescale and a price per kept entry."""

    drop_prob: Probability
    rescale: Rescale
    penalty: Annotated[Fraction, Range(-4, 4)]


@dataclass(frozen=True, slots=True)
class CountedRow(RowProblem):
    """A row problem with a number of entries to keep, and a rescale."""

    kept: Annotated[int, Range(0, 4)]
    rescale: Rescale


@dataclass(frozen=True, slots=True)
class FairRow(RowProblem):
    """A row problem with a number of entries to keep; the drop probability and DARE's rescale follow from it."""

    kept: Annotated[int, Range(0, 4)]


@dataclass(frozen=True, slots=True)
class MaskedRow(RowProblem):
    """A row problem with a realised mask, of which the leading entries are used, and a rescale."""

    keep: Annotated[tuple[bool, ...], Length(4, 4)]
    rescale: Rescale


# --- allocation ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer of an error budget: score sqrt(a/N), size N, and the keep probability of a rival plan."""

    score: Annotated[Fraction, Range(0, 10)]
    size: Annotated[Fraction, Range(1, 4)]
    rival: Annotated[Fraction, Range(0, 1)]


@dataclass(frozen=True, slots=True)
class Plan:
    """Layers that share an error budget."""

    layers: Annotated[tuple[PlannedLayer, ...], Length(0, 4)]
    budget: Annotated[Fraction, Range(0, 200)]


@dataclass(frozen=True, slots=True)
class PlannedEntry:
    """One entry of a delta, the root mean square of its input, and the keep probability of a rival plan."""

    weight: Small
    root_moment: Annotated[Fraction, Range(0, 2)]
    rival: Annotated[Fraction, Range(0, 1)]


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """Entries that share an error budget."""

    entries: Annotated[tuple[PlannedEntry, ...], Length(0, 4)]
    budget: Annotated[Fraction, Range(0, 24)]


@dataclass(frozen=True, slots=True)
class PricedLayer:
    """A layer at its best rescale: ratio rho = B/A, price mu with sqrt(mu A rho/N) given, and a rival k."""

    ratio: InnerProbability
    root_price: NotNegative
    rival: Probability


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """A layer's ratio rho = B/A at its best rescale, and two keep probabilities."""

    ratio: Annotated[Fraction, Range(0, 2, open_low=True)]
    first: KeepProbability
    second: KeepProbability
