"""The property attack: Hypothesis generates instances from the field types and steers by the slack."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from assay.audits.space import DEFAULT_RANGE, Leaf
from assay.audits.target import BROKEN, Target
from assay.core.errors import AssayError
from assay.core.instance import Field, Range, fields

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EXAMPLES = 200
MAX_DENOMINATOR = 64


class Property:
    """Runs of Hypothesis, each with a seed of its own, with `target()` on minus the slack."""

    def __init__(self, target: Target, rng: random.Random) -> None:
        self._target, self._rng = target, rng
        self._strategy = strategy(target.claim.instance)

    def run(self) -> None:
        """Run after run, until the target stops it."""
        import hypothesis

        def attempt(instance: Any) -> None:
            slack = self._target.consider(instance)
            if slack < BROKEN:
                hypothesis.target(-slack)

        settings = hypothesis.settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate, hypothesis.Phase.target],
            print_blob=False,
        )
        while True:
            test = hypothesis.given(self._strategy)(attempt)
            hypothesis.seed(self._rng.getrandbits(64))(settings(test))()


def strategy(kind: type) -> SearchStrategy[Any]:
    """A strategy of instances: the type's own ``propose(rng)`` where it has one, or its annotated fields."""
    from hypothesis import strategies as st

    propose = getattr(kind, "propose", None)
    if propose is not None:
        own: SearchStrategy[Any] = st.integers(0, 2**64 - 1).map(lambda seed: propose(random.Random(seed)))
        return own
    parts = st.tuples(*(_field(kind, f) for f in fields(kind)))
    return parts.map(lambda values: _made(kind, values)).filter(lambda instance: instance is not None)


def _made(kind: type, values: tuple[Any, ...]) -> Any | None:
    """The instance with these fields, or None where the type refuses them."""
    try:
        return kind(*values)
    except (AssayError, ValueError):
        return None


def _field(owner: type, field: Field) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    one = strategy(field.kind) if dataclasses.is_dataclass(field.kind) else _number(owner, field)
    if field.length is None:
        return one
    short = min(field.length.high, field.length.low + 6)
    return st.lists(one, min_size=field.length.low, max_size=short).map(tuple)


def _number(owner: type, field: Field) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    if field.kind is bool:
        return st.booleans()
    bounds = field.range or DEFAULT_RANGE
    special = st.sampled_from(Leaf(field.name, field.kind, bounds).special())
    return st.one_of(special, _integers(bounds) if field.kind is int else _fractions(bounds))


def _integers(bounds: Range) -> SearchStrategy[int]:
    from hypothesis import strategies as st

    return st.integers(int(bounds.low) + bounds.open_low, int(bounds.high) - bounds.open_high)


def _fractions(bounds: Range) -> SearchStrategy[Fraction]:
    """Fractions on grids: a denominator, and a step of that grid; far cheaper than `st.fractions`."""
    from hypothesis import strategies as st

    low, span = Fraction(bounds.low), Fraction(bounds.high) - bounds.low
    whole = st.integers(1, MAX_DENOMINATOR)
    grid = whole.flatmap(lambda d: st.integers(0, d).map(lambda k: low + span * Fraction(k, d)))
    return grid.filter(lambda value: value in bounds)
