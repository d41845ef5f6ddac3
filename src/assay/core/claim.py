"""Claims: a published theorem as a function from an instance to premises and two comparable sides."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from assay.core.errors import InputError
from assay.core.number import RELATIONS, Number, Relation, Truth

EXPECTATIONS = ("survives", "refuted", "undecidable")
BASES = ("checked", "constructed", "assumed")


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a conclusion and the relation that is claimed between them.

    `facts` are named numbers worth keeping beside the verdict (a mean, a count); they prove nothing.
    """

    lhs: Number
    relation: Relation
    rhs: Number
    facts: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise InputError(f"the relation {self.relation!r} is none of {', '.join(RELATIONS)}")


@dataclass(frozen=True, slots=True)
class Premise:
    """A named condition of a theorem.

    `basis` says why it may be relied on: ``checked`` (by `check`, three-valued, or by `Sides` to compare),
    ``constructed`` (the instance type cannot break it), or ``assumed`` (a black box: every result that rests
    on it is conditional, and says so).
    """

    name: str
    check: Callable[[Any], bool | Truth | Sides] | None = None
    basis: str = "checked"

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise InputError(f"premise {self.name!r}: the basis {self.basis!r} is none of {', '.join(BASES)}")
        if (self.basis == "checked") != (self.check is not None):
            raise InputError(
                f"premise {self.name!r}: a check is given if, and only if, the basis is 'checked'"
            )


@dataclass(frozen=True, slots=True)
class Source:
    """Where the statement stands: paper, version, and the theorem or equation in it."""

    paper: str
    locator: str
    version: str = ""

    def __str__(self) -> str:
        version = f" ({self.version})" if self.version else ""
        return f"{self.paper}{version}, {self.locator}"


@dataclass(frozen=True, slots=True)
class Proof:
    """The formal status: ``proved`` or ``open``, with the formal name and its environment where there is one."""

    status: str
    name: str = ""
    environment: str = ""

    def __post_init__(self) -> None:
        if self.status not in ("proved", "open", "none"):
            raise InputError(f"a proof's status is 'proved', 'open' or 'none', not {self.status!r}")


@dataclass(frozen=True, slots=True)
class Bound:
    """An identity or inequality: one exact or enclosed instance can refute it, and none can prove it."""

    name: ClassVar[str] = "bound"
    sides: Callable[[Any], Sides]


@dataclass(frozen=True, slots=True)
class Witness:
    """Existence: `produce` builds a witness and `sides` checks it.

    A witness that fails refutes the producer, not the theorem; `refute`, where given, is a dual proof that
    no witness exists (True proves it).
    """

    name: ClassVar[str] = "witness"
    produce: Callable[[Any], Any]
    sides: Callable[[Any, Any], Sides]
    refute: Callable[[Any], bool] | None = None


@dataclass(frozen=True, slots=True)
class Mean:
    """An expectation, ``E X relation bound``.

    `exact` computes E X (by enumeration or recursion).  Otherwise `draw` samples X from a `random.Random`,
    and `support` declares its range, without which no finite sample says anything.
    """

    name: ClassVar[str] = "mean"
    bound: Callable[[Any], Number]
    relation: Relation = "<="
    exact: Callable[[Any], Number] | None = None
    draw: Callable[[Any, random.Random], Number] | None = None
    support: Callable[[Any], tuple[Number, Number]] | None = None

    def __post_init__(self) -> None:
        if self.exact is None and (self.draw is None or self.support is None):
            raise InputError("a Mean needs an exact expectation, or a sampler and its declared support")
        if self.relation not in RELATIONS:
            raise InputError(f"the relation {self.relation!r} is none of {', '.join(RELATIONS)}")


@dataclass(frozen=True, slots=True)
class Tail:
    """A high-probability statement, ``P(event) <= delta``.

    `exact` computes the probability; otherwise `event` decides one draw (None: undecided, counted as not
    failed, which is sound for refuting and is never support).
    """

    name: ClassVar[str] = "tail"
    delta: Callable[[Any], Number]
    exact: Callable[[Any], Number] | None = None
    event: Callable[[Any, random.Random], bool | None] | None = None

    def __post_init__(self) -> None:
        if self.exact is None and self.event is None:
            raise InputError("a Tail needs an exact probability or an event to sample")


@dataclass(frozen=True, slots=True)
class Limit:
    """An almost-sure or asymptotic statement: never evaluated; it points to the finite claims that imply it."""

    name: ClassVar[str] = "limit"
    mode: str
    implied_by: tuple[str, ...]
    because: str = ""


Form = Bound | Witness | Mean | Tail | Limit


@dataclass(frozen=True, slots=True)
class Claim:
    """A theorem that can be run.

    Args:
        id: ``mission.name``.
        title: one line.
        statement: LaTeX.
        instance: the frozen dataclass that the theorem speaks about (see `assay.core.instance`).
        form: `Bound`, `Witness`, `Mean`, `Tail` or `Limit`.
        source: paper, version and locator.
        premises: the conditions, in the order of the statement.
        uses: ids of the claims that its proof needs.
        proof: formal status.
        expect: what its audit should find: ``survives``, ``refuted`` (a known erratum) or ``undecidable``.
        notes: what a reader should know: an erratum, a reading that was chosen, what would refute it.

    Raises:
        InputError: the id is not of that form, or `expect` is none of the three.
    """

    id: str
    title: str
    statement: str
    instance: type
    form: Form
    source: Source
    premises: tuple[Premise, ...] = ()
    uses: tuple[str, ...] = ()
    proof: Proof = Proof("none")
    expect: str = "survives"
    notes: str = ""

    def __post_init__(self) -> None:
        mission, dot, name = self.id.partition(".")
        if not (dot and all(p.isidentifier() for p in (mission, name))):
            raise InputError(f"the claim id {self.id!r} must be 'mission.name' in identifiers")
        if self.expect not in EXPECTATIONS:
            raise InputError(f"claim {self.id}: expect={self.expect!r} is none of {', '.join(EXPECTATIONS)}")
        names = [p.name for p in self.premises]
        if len(set(names)) != len(names):
            raise InputError(f"claim {self.id}: two premises have the same name")

    @property
    def mission(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]

    def without(self, *names: str) -> Claim:
        """The claim with some premises dropped: what an ablation attacks.

        Raises:
            InputError: no premise of that name.
        """
        known = {p.name for p in self.premises}
        for name in names:
            if name not in known:
                raise InputError(
                    f"claim {self.id} has no premise {name!r}; it has {', '.join(sorted(known)) or 'none'}"
                )
        return replace(self, premises=tuple(p for p in self.premises if p.name not in names))

    def digest(self) -> str:
        """sha256 over the statement and the source text of its functions: changes when the claim does."""
        h = hashlib.sha256()
        for part in (self.id, self.statement, self.form.name, *(p.name for p in self.premises)):
            h.update(part.encode() + b"\0")
        functions = [p.check for p in self.premises]
        functions += [getattr(self.form, n, None) for n in self.form.__dataclass_fields__]
        for function in functions:
            if callable(function):
                h.update(_source_text(function).encode() + b"\0")
        return h.hexdigest()


def _source_text(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", repr(function))


@dataclass(frozen=True, slots=True)
class Mission:
    """One published result made runnable: a folder with `model`, `algorithm` and `claims`."""

    id: str
    title: str
    claims: tuple[Claim, ...]
    summary: str = ""
