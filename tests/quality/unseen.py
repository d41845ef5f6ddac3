"""Claims written after the audit was built, from specifications that it was not built on: false ones and true ones.

They are hard on purpose: premises that are equalities or hold jointly on a thin set, matrices, many dimensions,
pockets at irrational points, gaps of a billionth, ranges of many decades, whole numbers in the hundreds.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from assay import Bound, Claim, Length, Mean, Premise, Range, Sides, Source, Tail, Witness
from assay.numerics.arb import exp, log, sqrt

SGD = Source("Bottou, Curtis and Nocedal, SIAM Review 2018", "false variants of section 4")
FEDERATED = Source("SCAFFOLD and FedAvg", "false variants")
SPECULATION = Source("Speculative actions", "source audit")
PANDORA = Source("Budgeted Pandora's box", "false variants")
NETWORKS = Source("LP-FT, sharp minima, ClockRoPE", "false variants")
GREEDY = Source("Randomised greedy compression, COLT 2026", "source audit, lemmas")
FOLKLORE = Source("textbook inequalities", "")

Unit = Annotated[Fraction, Range(0, 1)]
Positive = Annotated[Fraction, Range(0, 8, open_low=True)]
Real = Annotated[Fraction, Range(-8, 8)]


def claim(name, kind, form, source, *premises, true=False, title=""):
    expect = "survives" if true else "refuted"
    return Claim(
        f"unseen.{name}", title or name.replace("_", " "), name, kind, form, source, premises, expect=expect
    )


def bound(name, kind, sides, source, *premises, true=False):
    return claim(name, kind, Bound(sides), source, *premises, true=true)


# SGD on diagonal quadratics, by its moment recursion --------------------------------------------------------------


@dataclass(frozen=True)
class Quadratic:
    curvatures: Annotated[tuple[Fraction, ...], Length(1, 3), Range(0, 4, open_low=True)]
    start: Annotated[Fraction, Range(-4, 4)]
    step: Annotated[Fraction, Range(0, 2, open_low=True)]
    noise: Annotated[Fraction, Range(0, 4)]
    slope: Annotated[Fraction, Range(0, 2)]
    steps: Annotated[int, Range(0, 12)]


def second_moments(x: Quadratic, rate):
    squares = [x.start**2 for _ in x.curvatures]
    yield squares
    for k in range(x.steps):
        a = rate(k)
        gradient = sum(c * c * s for c, s in zip(x.curvatures, squares, strict=True))
        spread = a * a * (x.noise + x.slope * gradient) / len(squares)
        squares = [(1 - a * c) ** 2 * s + spread for c, s in zip(x.curvatures, squares, strict=True)]
        yield squares


def gap(x: Quadratic, squares):
    return sum(c * s for c, s in zip(x.curvatures, squares, strict=True)) / 2


def gradient_square(x: Quadratic, squares):
    return sum(c * c * s for c, s in zip(x.curvatures, squares, strict=True))


def constant_step(x: Quadratic) -> Sides:
    large, small = max(x.curvatures), min(x.curvatures)
    *_, last = second_moments(x, lambda _: x.step)
    floor = x.step * large * x.noise / (2 * small)
    return Sides(
        gap(x, last),
        "<=",
        floor + (1 - x.step * small) ** x.steps * (gap(x, [x.start**2] * len(last)) - floor),
    )


def within_cap(factor):
    return Premise(
        f"step at most {factor} mu / (L M_G)", lambda x: x.step * max(x.curvatures) * (1 + x.slope) <= factor
    )


sgd_double_cap = bound("sgd_double_cap", Quadratic, constant_step, SGD, within_cap(2))
sgd_cap_just_above = bound(
    "sgd_cap_just_above", Quadratic, constant_step, SGD, within_cap(Fraction(101, 100))
)
sgd_constant_step = bound("sgd_constant_step", Quadratic, constant_step, SGD, within_cap(1), true=True)


def summed_gradients(x: Quadratic, with_noise: bool) -> Sides:
    paths = list(second_moments(x, lambda _: x.step))[:-1]
    total = sum((gradient_square(x, s) for s in paths), start=Fraction(0))
    start = 2 * gap(x, [x.start**2] * len(x.curvatures)) / x.step
    return Sides(total, "<=", start + (x.steps * x.step * max(x.curvatures) * x.noise if with_noise else 0))


sgd_no_noise_term = bound(
    "sgd_no_noise_term", Quadratic, lambda x: summed_gradients(x, False), SGD, within_cap(1)
)
sgd_summed_gradients = bound(
    "sgd_summed_gradients", Quadratic, lambda x: summed_gradients(x, True), SGD, within_cap(1), true=True
)


@dataclass(frozen=True)
class Diminishing:
    curvature: Annotated[Fraction, Range(0, 4, open_low=True)]
    start: Annotated[Fraction, Range(-4, 4)]
    beta: Annotated[Fraction, Range(0, 4, open_low=True)]
    gamma: Annotated[Fraction, Range(0, 16, open_low=True)]
    noise: Annotated[Fraction, Range(0, 4)]
    steps: Annotated[int, Range(0, 80)]


def diminishing(x: Diminishing, slack_noise: int = 1) -> Sides:
    c, square = x.curvature, x.start**2
    for k in range(x.steps):
        a = x.beta / (x.gamma + k + 1)
        square = (1 - a * c) ** 2 * square + a * a * x.noise
    nu = (x.gamma + 1) * c * x.start**2 / 2
    if x.noise:
        nu = max(nu, x.beta**2 * c * x.noise / (2 * (x.beta * c - 1)) * slack_noise)
    return Sides(c * square / 2, "<=", nu / (x.gamma + x.steps + 1))


first_step = Premise("first step at most 1/L", lambda x: x.beta * x.curvature <= x.gamma + 1)
sgd_small_beta = bound(
    "sgd_small_beta", Diminishing, diminishing, SGD, first_step, Premise("no noise", lambda x: x.noise == 0)
)
sgd_diminishing = bound(
    "sgd_diminishing",
    Diminishing,
    diminishing,
    SGD,
    first_step,
    Premise("beta c > 1", lambda x: x.beta * x.curvature > 1),
    true=True,
)


@dataclass(frozen=True)
class OneStep:
    curvature: Positive
    point: Real
    step: Positive
    noise: Annotated[Fraction, Range(0, 8)]
    slope: Annotated[Fraction, Range(0, 8)]


def descent_lemma(x: OneStep) -> Sides:
    gradient = (x.curvature * x.point) ** 2
    after = (1 - x.step * x.curvature) ** 2 * x.point**2 + x.step**2 * (x.noise + x.slope * gradient)
    change = x.curvature * (after - x.point**2) / 2
    claimed = (
        -(1 - x.step * x.curvature * x.slope / 2) * x.step * gradient + x.curvature * x.step**2 * x.noise / 2
    )
    return Sides(change, "<=", claimed)


sgd_wrong_slope = bound("sgd_wrong_slope", OneStep, descent_lemma, SGD)


# Federated: gradient growth, perturbed strong convexity, the step cap ----------------------------------------------


@dataclass(frozen=True)
class Client:
    curvature: Annotated[Fraction, Range(-1, 4)]
    pull: Annotated[Fraction, Range(-4, 4)]


@dataclass(frozen=True)
class Clients:
    clients: Annotated[tuple[Client, ...], Length(1, 4)]
    point: Real


def growth(x: Clients) -> Sides:
    a, b = [c.curvature for c in x.clients], [c.pull for c in x.clients]
    best = sum(b) / sum(a)
    beta = max(abs(c) for c in a)
    grown = sum((c * (x.point - best)) ** 2 for c in a) / (2 * beta * len(a))
    return Sides(grown, "<=", sum(a) / len(a) * (x.point - best) ** 2 / 2)


convex_sum = Premise("the sum is strongly convex", lambda x: sum(c.curvature for c in x.clients) > 0)
convex_clients = Premise("every client is convex", lambda x: all(c.curvature >= 0 for c in x.clients))
scaffold_growth_not_convex = bound("scaffold_growth_not_convex", Clients, growth, FEDERATED, convex_sum)
scaffold_growth = bound("scaffold_growth", Clients, growth, FEDERATED, convex_sum, convex_clients, true=True)


@dataclass(frozen=True)
class Row3:
    entries: Annotated[tuple[Fraction, ...], Length(3, 3), Range(-4, 4)]


@dataclass(frozen=True)
class PerturbedMatrix:
    """u(x) = x^T A x / 2 with a full 3 x 3 matrix A, its bounds, and three points."""

    rows: Annotated[tuple[Row3, ...], Length(3, 3)]
    convexity: Annotated[Fraction, Range(0, 4)]
    smoothness: Annotated[Fraction, Range(0, 4)]
    x: Row3
    y: Row3
    z: Row3


def matrix(x):
    return [list(row.entries) for row in x.rows]


def apply(m, v):
    return [sum(a * b for a, b in zip(row, v, strict=True)) for row in m]


def dot(u, v):
    return sum(a * b for a, b in zip(u, v, strict=True))


def determinant(m):
    if len(m) == 1:
        return m[0][0]
    return sum(
        (-1) ** j * m[0][j] * determinant([row[:j] + row[j + 1 :] for row in m[1:]]) for j in range(len(m))
    )


def semidefinite(m):
    n = len(m)
    return all(
        determinant([[m[i][j] for j in chosen] for i in chosen]) >= 0
        for size in range(1, n + 1)
        for chosen in itertools.combinations(range(n), size)
    )


def shifted(m, shift, sign=1):
    return [
        [sign * v - (sign * shift if i == j else 0) for j, v in enumerate(row)] for i, row in enumerate(m)
    ]


symmetric = Premise(
    "A is symmetric", lambda x: all(matrix(x)[i][j] == matrix(x)[j][i] for i in range(3) for j in range(i))
)
convex_matrix = Premise("A - mu I is semidefinite", lambda x: semidefinite(shifted(matrix(x), x.convexity)))
smooth_matrix = Premise(
    "beta I - A is semidefinite", lambda x: semidefinite(shifted(matrix(x), x.smoothness, -1))
)


def perturbed(share):
    def sides(x: PerturbedMatrix) -> Sides:
        a, p, y, z = matrix(x), x.x.entries, x.y.entries, x.z.entries
        far = [v - w for v, w in zip(y, z, strict=True)]
        off = [v - w for v, w in zip(z, p, strict=True)]
        left = -dot(apply(a, p), far)
        right = (dot(z, apply(a, z)) - dot(y, apply(a, y))) / 2
        return Sides(right + share * x.convexity * dot(far, far) - x.smoothness * dot(off, off), "<=", left)

    return sides


scaffold_half_convexity = bound(
    "scaffold_half_convexity",
    PerturbedMatrix,
    perturbed(Fraction(1, 2)),
    FEDERATED,
    symmetric,
    convex_matrix,
    smooth_matrix,
)
scaffold_perturbed = bound(
    "scaffold_perturbed",
    PerturbedMatrix,
    perturbed(Fraction(1, 4)),
    FEDERATED,
    symmetric,
    convex_matrix,
    smooth_matrix,
    true=True,
)


@dataclass(frozen=True)
class LongRun:
    step: Annotated[Fraction, Range(0, Fraction(13, 8), open_low=True)]
    steps: Annotated[int, Range(1, 60)]


def average_gap(x: LongRun) -> Sides:
    """Mean of w_k^2/2 over k = 1..n along w <- (1 - u) w from w = 1, against 1/(2 u n)."""
    ratio = (1 - x.step) ** 2
    total, square = 0 * x.step, 1 + 0 * x.step
    for _ in range(x.steps):
        square = square * ratio
        total += square
    return Sides(total * x.step, "<=", 1)


fedavg_golden = bound("fedavg_above_golden", LongRun, average_gap, FEDERATED)
fedavg_below_golden = bound(
    "fedavg_below_golden",
    LongRun,
    average_gap,
    FEDERATED,
    Premise("below the golden ratio", lambda x: x.step <= Fraction(1618, 1000)),
    true=True,
)


# Speculation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthCost:
    actor: Annotated[Fraction, Range(0, 8, open_low=True)]
    guess: Annotated[Fraction, Range(0, 8, open_low=True)]
    hit_prob: Unit


def cost_exact(x):
    a, b, p = x.actor, x.guess, x.hit_prob
    whole = math.floor(a / b)
    return ((1 - p) * (a * whole - b * whole * Fraction(whole + 1, 2)) + p * b * whole) / a


def cost_printed(x):
    return (1 - x.hit_prob) * (x.actor / (2 * x.guess) - Fraction(1, 2)) + x.hit_prob


faster = Premise("the guess is faster", lambda x: x.guess < x.actor)
costs_agree = Premise("the two costs agree", lambda x: Sides(cost_exact(x), "==", cost_printed(x)))


def fractional_part(x):
    return x.actor / x.guess - math.floor(x.actor / x.guess)


depth_agree_only_if_whole = bound(
    "depth_agree_only_if_whole",
    DepthCost,
    lambda x: Sides(fractional_part(x), "==", 0),
    SPECULATION,
    faster,
    costs_agree,
)
depth_agree_if_whole = bound(
    "depth_agree_if_whole",
    DepthCost,
    lambda x: Sides(cost_exact(x), "==", cost_printed(x)),
    SPECULATION,
    faster,
    Premise("a/b is whole", lambda x: Sides(fractional_part(x), "==", 0)),
    true=True,
)


@dataclass(frozen=True)
class Rates:
    guess_rate: Annotated[Fraction, Range(0, 10**6, open_low=True)]
    actor_rate: Annotated[Fraction, Range(0, 10**6, open_low=True)]
    hit_prob: Unit
    horizon: Annotated[int, Range(1, 200)]


def hits(p, n):
    return p * n / (1 + p) + p**2 * (1 - (-p) ** n) / (1 + p) ** 2


def literal_time(x: Rates) -> Sides:
    a, b, t = x.guess_rate, x.actor_rate, x.horizon
    s, theta = hits(x.hit_prob, t - 1), a / (a + b)
    return Sides((t - s) * b * b / (a * (a + b)), "<=", s * theta / 2)


speculation_never_slower = bound(
    "speculation_never_slower",
    Rates,
    literal_time,
    SPECULATION,
    Premise("the guess is faster on average", lambda x: x.guess_rate > x.actor_rate),
    Premise("hits are likely", lambda x: x.hit_prob >= Fraction(9, 10)),
    Premise("a long run", lambda x: x.horizon >= 100),
)
raced_beats_verified = bound(
    "raced_beats_verified",
    Rates,
    lambda x: Sides(
        hits(x.hit_prob * x.guess_rate / (x.guess_rate + x.actor_rate), x.horizon - 1),
        "<=",
        x.guess_rate / (x.guess_rate + x.actor_rate) * hits(x.hit_prob, x.horizon - 1),
    ),
    SPECULATION,
)
half_not_attained = bound(
    "half_not_attained",
    Rates,
    lambda x: Sides(hits(x.hit_prob, x.horizon - 1) / x.horizon, "<", Fraction(1, 2)),
    SPECULATION,
)
half_is_a_ceiling = bound(
    "half_is_a_ceiling",
    Rates,
    lambda x: Sides(hits(x.hit_prob, x.horizon - 1) / x.horizon, "<=", Fraction(1, 2)),
    SPECULATION,
    true=True,
)


# Simplex and equality premises -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    weights: Annotated[tuple[Fraction, ...], Length(2, 4), Range(0, 1)]


on_simplex = Premise("weights add up to 1", lambda x: Sides(sum(x.weights), "==", 1))


def divergence(x: Weights):
    n = len(x.weights)
    return sum((w * log(n * w) for w in x.weights if w != 0), start=0 * x.weights[0])


def pinsker(constant):
    def sides(x: Weights) -> Sides:
        distance = sum(abs(w - Fraction(1, len(x.weights))) for w in x.weights)
        return Sides(constant * distance**2, "<=", divergence(x))

    return sides


pinsker_too_sharp = bound("pinsker_too_sharp", Weights, pinsker(Fraction(5001, 10000)), FOLKLORE, on_simplex)
pinsker_holds = bound("pinsker_holds", Weights, pinsker(Fraction(1, 2)), FOLKLORE, on_simplex, true=True)


@dataclass(frozen=True)
class Sphere:
    point: Annotated[tuple[Fraction, ...], Length(3, 3), Range(-1, 1)]


unit_norm = Premise("on the unit sphere", lambda x: Sides(sum(v * v for v in x.point), "==", 1))
sphere_product = bound(
    "sphere_product",
    Sphere,
    lambda x: Sides(x.point[0] * x.point[1] * x.point[2], "<=", Fraction(19, 100)),
    FOLKLORE,
    unit_norm,
)
sphere_product_holds = bound(
    "sphere_product_holds",
    Sphere,
    lambda x: Sides(27 * (x.point[0] * x.point[1] * x.point[2]) ** 2, "<=", 1),
    FOLKLORE,
    unit_norm,
    true=True,
)


@dataclass(frozen=True)
class Balanced:
    """Entries that add up to 0, and a matrix whose rows do."""

    entries: Annotated[tuple[Fraction, ...], Length(4, 8), Range(-3, 3)]


centred = Premise("entries add up to 0", lambda x: Sides(sum(x.entries), "==", 0))
skew_bounded = bound(
    "skew_bounded",
    Balanced,
    lambda x: Sides(
        sum(v**3 for v in x.entries) ** 2, "<=", sum(v * v for v in x.entries) ** 3 * Fraction(1, 2)
    ),
    FOLKLORE,
    centred,
)


# Pandora ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gamble:
    high: Annotated[Fraction, Range(0, 8)]
    chance: Annotated[Fraction, Range(0, 1, open_low=True)]
    cost: Annotated[Fraction, Range(0, 1, open_low=True)]


@dataclass(frozen=True)
class TwoBoxes:
    first: Gamble
    second: Gamble


def opened(one: Gamble, two: Gamble):
    """The best value when `one` is opened first: after each outcome, go on or stop."""
    total = -one.cost
    for value, prob in ((one.high, one.chance), (0, 1 - one.chance)):
        on = -two.cost + two.chance * max(value, two.high) + (1 - two.chance) * value
        total += prob * max(value, on)
    return total


mean_order = Premise(
    "the first has the larger net mean",
    lambda x: x.first.chance * x.first.high - x.first.cost >= x.second.chance * x.second.high - x.second.cost,
)
pandora_by_mean = bound(
    "pandora_by_mean",
    TwoBoxes,
    lambda x: Sides(opened(x.second, x.first), "<=", opened(x.first, x.second)),
    PANDORA,
    mean_order,
)
index_order = Premise(
    "the first has the larger index",
    lambda x: x.first.high - x.first.cost / x.first.chance >= x.second.high - x.second.cost / x.second.chance,
)
worth_it = Premise(
    "both indices are positive", lambda x: min(g.high - g.cost / g.chance for g in (x.first, x.second)) >= 0
)
pandora_by_index = bound(
    "pandora_by_index",
    TwoBoxes,
    lambda x: Sides(opened(x.second, x.first), "<=", opened(x.first, x.second)),
    PANDORA,
    index_order,
    worth_it,
    true=True,
)


# Mirror descent --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Losses:
    losses: Annotated[tuple[Fraction, ...], Length(1, 20), Range(-1, 1)]
    start: Annotated[Fraction, Range(-1, 1)]
    comparator: Annotated[Fraction, Range(-1, 1)]
    rate: Annotated[Fraction, Range(0, 1, open_low=True)]


def descent_regret(x: Losses):
    action, regret = x.start, 0 * x.start
    for y in x.losses:
        regret += (action - x.comparator) * y
        action = min(max(action - x.rate * y, Fraction(-1)), Fraction(1))
    return regret


def master_bound(divergence_from_start: bool):
    def sides(x: Losses) -> Sides:
        far = (x.comparator - x.start) ** 2 if divergence_from_start else x.comparator**2 - x.start**2
        return Sides(descent_regret(x), "<=", far / (2 * x.rate) + x.rate / 2 * sum(y * y for y in x.losses))

    return sides


descent_any_start = bound(
    "descent_any_start", Losses, master_bound(False), Source("Bandit Algorithms", "section 28")
)
descent_from_start = bound(
    "descent_from_start", Losses, master_bound(True), Source("Bandit Algorithms", "section 28"), true=True
)


# Sharp minima and the second moment -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hessian:
    a: Annotated[Fraction, Range(0, 100, open_low=True)]
    b: Annotated[Fraction, Range(0, 100, open_low=True)]
    c: Annotated[Fraction, Range(-100, 100)]
    scale: Annotated[Fraction, Range(0, 10, open_low=True)]


hessian_psd = Premise("H is semidefinite", lambda x: x.c**2 <= x.a * x.b)


def sharpness(x: Hessian):
    one, two = x.a / x.scale**2, x.b * x.scale**2
    return (one + two + sqrt((one - two) ** 2 + 4 * x.c**2)) / 2


sharpness_max_only = bound(
    "sharpness_max_only",
    Hessian,
    lambda x: Sides(sharpness(x), "<=", Fraction(19, 10) * max(x.a / x.scale**2, x.b * x.scale**2)),
    NETWORKS,
    hessian_psd,
)
sharpness_sum = bound(
    "sharpness_sum",
    Hessian,
    lambda x: Sides(sharpness(x), "<=", x.a / x.scale**2 + x.b * x.scale**2),
    NETWORKS,
    hessian_psd,
    true=True,
)


@dataclass(frozen=True)
class Form:
    a: Annotated[Fraction, Range(0, 8)]
    b: Annotated[Fraction, Range(0, 8)]
    c: Annotated[Fraction, Range(-8, 8)]
    u: Annotated[Fraction, Range(-2, 2)]
    v: Annotated[Fraction, Range(-2, 2)]


def rayleigh(shrink):
    def sides(x: Form) -> Sides:
        top = (x.a + x.b + sqrt((x.a - x.b) ** 2 + 4 * x.c**2)) / 2
        value = x.a * x.u**2 + 2 * x.c * x.u * x.v + x.b * x.v**2
        return Sides(value, "<=", top * (x.u**2 + x.v**2) * shrink)

    return sides


coupled = Premise(
    "the form is neither diagonal nor balanced", lambda x: abs(x.c) >= 1 and abs(x.a - x.b) >= 1
)
unit_vector = Premise("the vector is not short", lambda x: x.u**2 + x.v**2 >= 1)
rayleigh_a_billionth = bound(
    "rayleigh_a_billionth", Form, rayleigh(1 - Fraction(1, 10**9)), NETWORKS, coupled, unit_vector
)
rayleigh_holds = bound("rayleigh_holds", Form, rayleigh(1), NETWORKS, coupled, unit_vector, true=True)


# Positive definite profiles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    position: Annotated[Fraction, Range(-3, 3)]
    weight: Annotated[Fraction, Range(-2, 2)]


@dataclass(frozen=True)
class Nodes:
    nodes: Annotated[tuple[Node, ...], Length(1, 6)]


def gram(profile):
    def sides(x: Nodes) -> Sides:
        total = sum(
            (p.weight * q.weight * profile(p.position - q.position) for p in x.nodes for q in x.nodes),
            start=0 * x.nodes[0].weight,
        )
        return Sides(0, "<=", total)

    return sides


profile_epanechnikov = bound(
    "profile_epanechnikov", Nodes, gram(lambda t: max(1 - t * t, Fraction(0))), NETWORKS
)
profile_fourth_power = bound("profile_fourth_power", Nodes, gram(lambda t: exp(-(t**4))), NETWORKS)
profile_triangle = bound(
    "profile_triangle", Nodes, gram(lambda t: max(1 - abs(t), Fraction(0))), NETWORKS, true=True
)


def arc(t):
    whole = t - 6 * math.floor(t / 6)
    return min(whole, 6 - whole)


profile_arc = bound("profile_arc", Nodes, gram(lambda t: exp(-(arc(t) ** 2) / 8)), NETWORKS)


# Counting lemmas ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trials:
    trials: Annotated[int, Range(1, 1000)]
    keep_prob: Annotated[Fraction, Range(0, 1, open_low=True)]
    excess: Annotated[Fraction, Range(0, 1, open_low=True)]


def upper_tail(x: Trials):
    n, p = x.trials, x.keep_prob
    if p == 1:
        return 0 * p
    first = math.floor((1 + x.excess) * n * p) + 1
    term, total = (1 - p) ** n, 0 * p
    for k in range(n + 1):
        total += term if k >= first else 0
        term *= (n - k) * p / ((k + 1) * (1 - p))
    return total


def kept_count(constant):
    return Tail(exact=upper_tail, delta=lambda x: exp(-(x.excess**2) * x.trials * x.keep_prob * constant))


kept_count_half = claim("kept_count_half", Trials, kept_count(Fraction(1, 2)), GREEDY)
kept_count_third = claim("kept_count_third", Trials, kept_count(Fraction(1, 3)), GREEDY, true=True)


@dataclass(frozen=True)
class Scores:
    scores: Annotated[tuple[Fraction, ...], Length(1, 8), Range(0, 8)]
    factor: Annotated[Fraction, Range(1, 4)]


markov_strict = bound(
    "markov_strict",
    Scores,
    lambda x: Sides(
        (1 - 1 / x.factor) * len(x.scores),
        "<=",
        sum(1 for a in x.scores if a < x.factor * sum(x.scores) / len(x.scores)),
    ),
    GREEDY,
    Premise("the factor exceeds 1", lambda x: x.factor > 1),
)


@dataclass(frozen=True)
class Cubes:
    a: Annotated[int, Range(1, 60)]
    b: Annotated[int, Range(1, 60)]
    c: Annotated[int, Range(1, 60)]
    d: Annotated[int, Range(1, 60)]


taxicab = bound(
    "taxicab",
    Cubes,
    lambda x: Sides(x.a, "==", x.c),
    FOLKLORE,
    Premise("a <= b and c <= d", lambda x: x.a <= x.b and x.c <= x.d),
    Premise("equal sums of cubes", lambda x: Sides(x.a**3 + x.b**3, "==", x.c**3 + x.d**3)),
)


@dataclass(frozen=True)
class Whole:
    n: Annotated[int, Range(0, 10**9)]


def has_factor(n):
    return any(n % d == 0 for d in range(2, min(math.isqrt(n), 2000) + 1))


euler_primes = bound(
    "euler_primes", Whole, lambda x: Sides(int(has_factor(x.n**2 + x.n + 41)), "==", 0), FOLKLORE
)


# Many dimensions, tiny gaps, wide ranges -------------------------------------------------------------------------


@dataclass(frozen=True)
class Long:
    values: Annotated[tuple[Fraction, ...], Length(30, 30), Range(-4, 4)]


def centre(i):
    return Fraction((1618033 * (i + 1)) % 1000003, 1000003) - Fraction(1, 2)


def bowl(x: Long):
    return (
        sum((v - centre(i)) ** 2 for i, v in enumerate(x.values))
        + dot(x.values[:-1], x.values[1:]) ** 2 / 100
    )


bowl_is_positive = bound(
    "bowl_is_positive", Long, lambda x: Sides(Fraction(11, 1000), "<=", bowl(x)), FOLKLORE
)


def valley(x: Long):
    w = [v - centre(i) for i, v in enumerate(x.values[:20])]
    return sum(10 * (b - a * a) ** 2 + a * a for a, b in itertools.pairwise(w))


valley_is_positive = bound(
    "valley_is_positive", Long, lambda x: Sides(Fraction(1, 100), "<=", valley(x)), FOLKLORE
)
long_cauchy = bound(
    "long_cauchy",
    Long,
    lambda x: Sides(sum(x.values) ** 2, "<=", 30 * sum(v * v for v in x.values)),
    FOLKLORE,
    true=True,
)


@dataclass(frozen=True)
class One:
    x: Annotated[Fraction, Range(0, 100, open_low=True)]


two_over = bound(
    "two_over", One, lambda x: Sides(sqrt(2) * 2 * (1 + Fraction(1, 10**9)), "<=", x.x + 2 / x.x), FOLKLORE
)
two_over_holds = bound(
    "two_over_holds", One, lambda x: Sides(8, "<=", (x.x + 2 / x.x) ** 2), FOLKLORE, true=True
)


@dataclass(frozen=True)
class Wide:
    x: Annotated[Fraction, Range(1, 10**12)]
    y: Annotated[Fraction, Range(1, 10**12)]


def log_against_power(constant):
    return lambda x: Sides(log(x.x) + log(x.y), "<=", constant * (exp(log(x.x) / 10) + exp(log(x.y) / 10)))


log_under_power = bound("log_under_power", Wide, log_against_power(Fraction(3678, 1000)), FOLKLORE)
log_under_power_holds = bound(
    "log_under_power_holds", Wide, log_against_power(Fraction(3679, 1000)), FOLKLORE, true=True
)


@dataclass(frozen=True)
class Unbounded:
    x: Fraction
    y: Fraction
    z: Fraction


motzkin_three = bound(
    "motzkin_three",
    Unbounded,
    lambda x: Sides(
        x.x**2 * x.y**2 * x.z**2 * 3 * (1 + Fraction(1, 10**6)),
        "<=",
        2 * x.x**4 * x.y**2 / 3 + 3 * x.x**2 * x.y**4 / 5 + 5 * x.z**6 / 2,
    ),
    FOLKLORE,
    Premise("x y z is not 0", lambda x: x.x * x.y * x.z != 0),
)


# Statistical, and existence -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    pairs: Annotated[int, Range(1, 20)]


def walk(x: Walk, rng: random.Random):
    return abs(sum(rng.choice((-1, 1)) for _ in range(2 * x.pairs)))


def walk_mean(constant):
    return Mean(bound=lambda x: constant * sqrt(2 * x.pairs), draw=walk, support=lambda x: (0, 2 * x.pairs))


walk_too_short = claim("walk_too_short", Walk, walk_mean(Fraction(3, 4)), FOLKLORE)
walk_holds = claim("walk_holds", Walk, walk_mean(1), FOLKLORE, true=True)


@dataclass(frozen=True)
class Egyptian:
    above: Annotated[int, Range(1, 12)]
    below: Annotated[int, Range(1, 60)]


def two_unit_fractions(x: Egyptian):
    share = Fraction(x.above, x.below)
    for a in range(1, 2 * x.below // x.above + 1):
        rest = share - Fraction(1, a)
        if rest > 0 and rest.numerator == 1:
            return Fraction(1, a), rest
    return Fraction(0), Fraction(0)


egyptian = claim(
    "egyptian",
    Egyptian,
    Witness(
        two_unit_fractions,
        lambda x, w: Sides(w[0] + w[1], "==", Fraction(x.above, x.below)),
        refute=lambda x: two_unit_fractions(x)[0] == 0,
    ),
    FOLKLORE,
    Premise("a share below 1", lambda x: x.above < x.below),
)


@dataclass(frozen=True)
class SymmetricMatrix:
    rows: Annotated[tuple[Row3, ...], Length(3, 3)]


definite = Premise("A is semidefinite", lambda x: semidefinite(matrix(x)))


def diagonal(x):
    return math.prod(matrix(x)[i][i] for i in range(3))


hadamard_too_sharp = bound(
    "hadamard_too_sharp",
    SymmetricMatrix,
    lambda x: Sides(
        determinant(matrix(x)) + abs(matrix(x)[0][1] * matrix(x)[1][2] * matrix(x)[0][2]) * Fraction(11, 10),
        "<=",
        diagonal(x),
    ),
    FOLKLORE,
    symmetric,
    definite,
    Premise(
        "no two entries are equal",
        lambda x: len({matrix(x)[i][j] for i in range(3) for j in range(i + 1)}) == 6,
    ),
)
hadamard = bound(
    "hadamard",
    SymmetricMatrix,
    lambda x: Sides(determinant(matrix(x)), "<=", diagonal(x)),
    FOLKLORE,
    symmetric,
    definite,
    true=True,
)
