"""The smt attack: z3 solves for a violation when the sides are polynomial or rational.

The premises and the sides are run on symbolic reals.  A comparison inside them forks the run: both answers are
explored, each with its condition on the path.  Whole numbers stay concrete, since they often are lengths or
exponents.  Sides that are not polynomial (a logarithm, say) cannot be run this way, and the attack ends.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from assay.audits.space import Leaf, Shape, Value, leaves, shapes
from assay.audits.space import propose as build
from assay.audits.target import Target, sides_function
from assay.core.claim import Claim, Sides
from assay.core.number import Truth

MAX_PATHS = 32
MAX_SYMBOLS = 8
TIMEOUT_MS = 1000


class NotPolynomial(Exception):
    """The claim's functions did something to a symbol that has no polynomial meaning."""


class Path:
    """One way through the branches of a run: the answers so far and the conditions they stand for."""

    def __init__(self, answers: list[bool]) -> None:
        self.answers = answers
        self.conditions: list[Any] = []

    def decide(self, condition: Any) -> bool:
        """The prescribed answer, or True where none is; the condition joins the path."""
        import z3

        index = len(self.conditions)
        if index == len(self.answers):
            self.answers.append(True)
        answer = self.answers[index]
        self.conditions.append(condition if answer else z3.Not(condition))
        return answer

    def next(self) -> Path | None:
        """The path after this one in depth-first order."""
        answers = list(self.answers)
        while answers and not answers[-1]:
            answers.pop()
        return Path([*answers[:-1], False]) if answers else None


class Symbol:
    """A real number under z3 that behaves like a number in ``+ - * / ** < <= ==`` and ``abs``."""

    __slots__ = ("path", "term")

    def __init__(self, term: Any, path: Path) -> None:
        self.term, self.path = term, path

    def _lift(self, other: Any) -> Any:
        if isinstance(other, Symbol):
            return other.term
        if isinstance(other, bool) or not isinstance(other, int | Fraction):
            raise NotPolynomial(type(other).__name__)
        return rational(other)

    def _new(self, term: Any) -> Symbol:
        return Symbol(term, self.path)

    def __add__(self, other: Any) -> Symbol:
        return self._new(self.term + self._lift(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Symbol:
        return self._new(self.term - self._lift(other))

    def __rsub__(self, other: Any) -> Symbol:
        return self._new(self._lift(other) - self.term)

    def __mul__(self, other: Any) -> Symbol:
        return self._new(self.term * self._lift(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Symbol:
        return self._divide(self.term, self._lift(other))

    def __rtruediv__(self, other: Any) -> Symbol:
        return self._divide(self._lift(other), self.term)

    def _divide(self, numerator: Any, denominator: Any) -> Symbol:
        if not self.path.decide(denominator != 0):
            raise ZeroDivisionError("division by a symbol that is 0 on this path")
        return self._new(numerator / denominator)

    def __pow__(self, exponent: Any) -> Symbol:
        if not isinstance(exponent, int):
            raise NotPolynomial("a symbolic or fractional exponent")
        if exponent < 0:
            return 1 / self**-exponent
        result = rational(1)
        for _ in range(exponent):
            result = result * self.term
        return self._new(result)

    def __neg__(self) -> Symbol:
        return self._new(-self.term)

    def __abs__(self) -> Symbol:
        return self if self >= 0 else -self

    def __lt__(self, other: Any) -> bool:
        return self.path.decide(self.term < self._lift(other))

    def __le__(self, other: Any) -> bool:
        return self.path.decide(self.term <= self._lift(other))

    def __gt__(self, other: Any) -> bool:
        return self.path.decide(self.term > self._lift(other))

    def __ge__(self, other: Any) -> bool:
        return self.path.decide(self.term >= self._lift(other))

    def __eq__(self, other: object) -> bool:
        return self.path.decide(self.term == self._lift(other))

    def __bool__(self) -> bool:
        return self.path.decide(self.term != 0)

    __hash__ = object.__hash__


def rational(value: int | Fraction) -> Any:
    """A z3 rational constant."""
    import z3

    return z3.Q(Fraction(value).numerator, Fraction(value).denominator)


class Smt:
    """Shape after shape, the whole numbers at their corners, every path through the premises and sides."""

    def __init__(self, target: Target, rng: random.Random) -> None:
        self._target = target
        self._kind = target.claim.instance
        self._queue = self._problems()
        self.proved: list[Shape] = []

    def run(self) -> None:
        """Solve until stopped; returns when all small shapes are done or the sides are not polynomial."""
        for shape, whole in self._queue:
            try:
                unsatisfiable = self._solve(shape, whole)
            except NotPolynomial:
                return
            if unsatisfiable and not whole:
                self.proved.append(shape)

    def _problems(self) -> Iterator[tuple[Shape, dict[int, Value]]]:
        for shape in shapes(self._kind):
            parts = leaves(self._kind, shape)
            concrete = [i for i, leaf in enumerate(parts) if leaf.kind is not Fraction]
            if not 0 < len(parts) - len(concrete) <= MAX_SYMBOLS:
                continue
            corners = itertools.product(*(parts[i].special() for i in concrete))
            for values in itertools.islice(corners, 64):
                yield shape, dict(zip(concrete, values, strict=True))

    def _solve(self, shape: Shape, whole: dict[int, Value]) -> bool:
        """Look for a violation of that shape; True if every path was shown to have none."""
        import z3

        parts = leaves(self._kind, shape)
        names = [z3.Real(f"x{i}") for i in range(len(parts))]
        path: Path | None = Path([])
        complete, count = True, 0
        while path is not None:
            self._target.check_time()
            count += 1
            if count > MAX_PATHS:
                return False
            values = [whole[i] if i in whole else Symbol(names[i], path) for i in range(len(parts))]
            violation = _violation(self._target.claim, shape, values)
            if violation is not None:
                solver = z3.Solver()
                solver.set("timeout", TIMEOUT_MS)
                solver.add(
                    *(c for i, leaf in enumerate(parts) if i not in whole for c in _inside(names[i], leaf))
                )
                solver.add(*path.conditions, violation)
                answer = solver.check()
                if answer == z3.sat:
                    self._propose(shape, parts, whole, names, solver.model())
                complete = complete and answer == z3.unsat
            path = path.next()
        return complete

    def _propose(
        self, shape: Shape, parts: list[Leaf], whole: dict[int, Value], names: Any, model: Any
    ) -> None:
        values = [whole[i] if i in whole else _value(model, names[i]) for i in range(len(parts))]
        instance = build(self._kind, shape, values)
        if instance is not None:
            self._target.consider(instance)


def _violation(claim: Claim, shape: Shape, values: list[Any]) -> Any | None:
    """The negated conclusion as a z3 formula on this path; None where the path breaks a premise or divides by 0.

    Raises:
        NotPolynomial: the claim's functions cannot be run on symbols.
    """
    sides = sides_function(claim)
    assert sides is not None
    try:
        instance = build(claim.instance, shape, values)
        if instance is None:
            return None
        for premise in claim.premises:
            if premise.check is not None and not _holds(premise.check(instance)):
                return None
        return _negated(sides(instance))
    except ZeroDivisionError:
        return None
    except NotPolynomial:
        raise
    except Exception as error:  # anything else a symbol cannot do: logarithms, int(), isinstance checks
        raise NotPolynomial(str(error)) from error


def _holds(result: Any) -> bool:
    if isinstance(result, Sides):
        compare: Any = {"==": operator.eq, "<=": operator.le, "<": operator.lt}[result.relation]
        return bool(compare(result.lhs, result.rhs))
    return Truth.of(result) is Truth.TRUE


def _negated(sides: Sides) -> Any | None:
    import z3

    lhs, rhs = _term(sides.lhs), _term(sides.rhs)
    formula = {"==": lhs != rhs, "<=": lhs > rhs, "<": lhs >= rhs}[sides.relation]
    return formula if z3.is_expr(formula) else z3.BoolVal(bool(formula))


def _term(value: Any) -> Any:
    if isinstance(value, Symbol):
        return value.term
    if isinstance(value, int | Fraction):
        return rational(value)
    raise NotPolynomial(type(value).__name__)


def _inside(name: Any, leaf: Leaf) -> list[Any]:
    low, high = rational(leaf.range.low), rational(leaf.range.high)
    return [
        name > low if leaf.range.open_low else name >= low,
        name < high if leaf.range.open_high else name <= high,
    ]


def _value(model: Any, name: Any) -> Fraction:
    import z3

    value = model.eval(name, model_completion=True)
    if z3.is_algebraic_value(value):
        value = value.approx(30)
    return Fraction(value.as_fraction())
