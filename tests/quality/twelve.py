"""Twelve results of other missions, and more, written the way a theorist would: with what `assay` exports.

Each is deliberately self-contained: an instance type, the mathematics, a Claim.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from assay import (
    Bound,
    Claim,
    Length,
    Limit,
    Mean,
    Premise,
    Range,
    Sides,
    Source,
    Tail,
    Witness,
)
from assay.numerics.arb import exp, log, sqrt

Unit = Annotated[Fraction, Range(0, 1)]


# 1. Speculation: the number of hits has a closed form -------------------------------------------------------


@dataclass(frozen=True)
class Hits:
    hit_prob: Unit
    steps: Annotated[int, Range(0, 12)]


def hits_by_recursion(x: Hits):
    before, now = 0 * x.hit_prob, 0 * x.hit_prob
    for n in range(1, x.steps + 1):
        after = x.hit_prob * (1 + before) + (1 - x.hit_prob) * now if n > 1 else x.hit_prob
        before, now = now, after
    return now


def hits_in_closed_form(x: Hits):
    p, n = x.hit_prob, x.steps
    return p * n / (1 + p) + p**2 * (1 - (-p) ** n) / (1 + p) ** 2


speculation_hits = Claim(
    "papers.speculation_hits",
    "The expected number of hits in closed form",
    r"S_n = \frac{pn}{1+p} + \frac{p^2 (1 - (-p)^n)}{(1+p)^2}",
    Hits,
    Bound(lambda x: Sides(hits_by_recursion(x), "==", hits_in_closed_form(x))),
    Source("Speculative actions", "Lemma on the hit count"),
)


# 2. Speculation: the cost of depth, with its floor -----------------------------------------------------------


@dataclass(frozen=True)
class Depth:
    actor: Annotated[Fraction, Range(0, 8, open_low=True)]
    guess: Annotated[Fraction, Range(0, 8, open_low=True)]
    hit_prob: Unit


def cost_exact(x: Depth):
    a, b, p = x.actor, x.guess, x.hit_prob
    whole = math.floor(a / b)
    return ((1 - p) * (a * whole - b * whole * Fraction(whole + 1, 2)) + p * b * whole) / a


def cost_printed(x: Depth):
    return (1 - x.hit_prob) * (x.actor / (2 * x.guess) - Fraction(1, 2)) + x.hit_prob


def cost_gap(x: Depth):
    ratio = x.actor / x.guess
    part = ratio - math.floor(ratio)
    return part / (2 * ratio) * (2 * x.hit_prob - (1 - x.hit_prob) * (1 - part))


faster = Premise("the guess is faster", lambda x: x.guess < x.actor)

depth_cost_gap = Claim(
    "papers.depth_cost_gap",
    "By how much the printed cost of depth is off",
    r"\tilde c - c = \frac{f}{2x} (2p - (1-p)(1-f)), \quad x = a/b, f = x - \lfloor x \rfloor",
    Depth,
    Bound(lambda x: Sides(cost_printed(x) - cost_exact(x), "==", cost_gap(x))),
    Source("Speculative actions", "Theorem 6"),
    premises=(faster,),
)

depth_cost_printed = Claim(
    "papers.depth_cost_printed",
    "The printed cost of depth as an identity",
    r"c = (1-p)\left(\frac{a}{2b} - \frac12\right) + p",
    Depth,
    Bound(lambda x: Sides(cost_exact(x), "==", cost_printed(x))),
    Source("Speculative actions", "Theorem 6"),
    premises=(faster,),
    expect="refuted",
)


# 3. and 4. A hit block: what is verified, and what the paper adds up ----------------------------------------


@dataclass(frozen=True)
class Atom:
    value: Annotated[int, Range(0, 4)]
    weight: Annotated[int, Range(1, 4)]


@dataclass(frozen=True)
class Latencies:
    actor: Annotated[tuple[Atom, ...], Length(1, 3)]
    speculator: Annotated[tuple[Atom, ...], Length(1, 3)]


def expectation(x: Latencies, f):
    """E f(A, B, C): A the speculator, B and C two calls of the actor."""
    total = Fraction(0)
    for a, b, c in itertools.product(x.speculator, x.actor, x.actor):
        total += a.weight * b.weight * c.weight * f(a.value, b.value, c.value)
    weight = sum(b.weight for b in x.actor) ** 2 * sum(a.weight for a in x.speculator)
    return total / weight


def pick(atoms: tuple[Atom, ...], rng: random.Random) -> int:
    return rng.choices([a.value for a in atoms], [a.weight for a in atoms])[0]


def draw_saving(x: Latencies, rng: random.Random):
    a, b, c = pick(x.speculator, rng), pick(x.actor, rng), pick(x.actor, rng)
    return b + c - max(b, min(a, b) + c)


hit_block_verified = Claim(
    "papers.hit_block_verified",
    "What a hit saves when nothing is committed unverified",
    r"E[B + C - \max(B, \min(A,B) + C)] = E \min(C, (B - A)^+)",
    Latencies,
    Mean(
        bound=lambda x: expectation(x, lambda a, b, c: min(c, max(b - a, 0))),
        relation="==",
        exact=lambda x: expectation(x, lambda a, b, c: b + c - max(b, min(a, b) + c)),
    ),
    Source("Speculative actions", "Proof of Theorem 2, corrected"),
)

hit_block_paper = Claim(
    "papers.hit_block_paper",
    "What a hit saves, as the paper's proof adds it up",
    r"E[B + C - \max(B, \min(A,B) + C)] = E (B - A)^+",
    Latencies,
    Mean(
        bound=lambda x: expectation(x, lambda a, b, c: max(b - a, 0)),
        relation="==",
        draw=draw_saving,
        support=lambda x: (0, 4),
    ),
    Source("Speculative actions", "Proof of Theorem 2"),
    expect="refuted",
)


# 5. Exp4: the regret by exact enumeration --------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    first: Unit
    second: Unit


@dataclass(frozen=True)
class Game:
    rewards: Annotated[tuple[Round, ...], Length(1, 4)]


def exp4_regret(x: Game):
    """Two arms, two experts that each recommend one of them; every path of the algorithm, weighed."""
    rounds = [(r.first, r.second) for r in x.rewards]
    rate = sqrt(log(2) / Fraction(len(rounds)))
    earned = expected_reward(rounds, rate, [0, 0])
    best = max(sum(r[arm] for r in rounds) for arm in (0, 1))
    return best - earned


def expected_reward(rounds, rate, losses):
    if not rounds:
        return 0
    gap = rate * (losses[0] - losses[1])
    if isinstance(rounds[0][0], float):
        gap = float(gap)
    first = 1 / (1 + exp(gap))
    total = 0
    for arm, prob in ((0, first), (1, 1 - first)):
        reward = rounds[0][arm]
        after = list(losses)
        after[arm] = after[arm] + (1 - reward) / prob
        rest = expected_reward(rounds[1:], rate, after)
        total = total + prob * (reward + rest)
    return total


exp4_bound = Claim(
    "papers.exp4_regret",
    "The regret of Exp4 with two arms and two experts",
    r"R_n \le \sqrt{2 n k \log M} \quad (k = M = 2)",
    Game,
    Mean(
        bound=lambda x: sqrt(log(2) * 4 * len(x.rewards)),
        relation="<=",
        exact=exp4_regret,
    ),
    Source("Lattimore and Szepesvari, Bandit Algorithms", "Theorem 18.1"),
)


# 6. The ball bandit: regret by sampling ----------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    first: Annotated[Fraction, Range(-1, 1)]
    second: Annotated[Fraction, Range(-1, 1)]


@dataclass(frozen=True)
class Losses:
    losses: Annotated[tuple[Loss, ...], Length(2, 8)]


def ball_regret(x: Losses, rng: random.Random) -> float:
    """One run of the ball algorithm in the plane: its loss minus that of the best fixed point."""
    n, d = len(x.losses), 2
    eta = math.sqrt(math.log(n) / (3 * d * n))
    radius = max(0.0, 1 - 2 * eta * d)
    estimate, total, paid = [0.0, 0.0], [0.0, 0.0], 0.0
    for step in x.losses:
        loss = (float(step.first), float(step.second))
        norm = math.hypot(*estimate)
        inside = min(radius, eta * norm / (1 + eta * norm))
        explore = rng.random() < 1 - inside
        axis, sign = rng.randrange(d), rng.choice((-1, 1))
        if explore:
            paid += sign * loss[axis]
            estimate[axis] += d * loss[axis] / (1 - inside)
        else:
            paid -= sum(a * b for a, b in zip(estimate, loss, strict=True)) / norm
        total = [a + b for a, b in zip(total, loss, strict=True)]
    return min(2.0 * n, max(-2.0 * n, paid + math.hypot(*total)))


ball_bandit = Claim(
    "papers.ball_bandit",
    "The regret of the linear bandit on the unit ball",
    r"E \sum_t \langle A_t - a, y_t \rangle \le 2 \sqrt{3 n d \log n}",
    Losses,
    Mean(
        bound=lambda x: sqrt(log(len(x.losses)) * 6 * len(x.losses)) * 2,
        draw=ball_regret,
        support=lambda x: (-2 * len(x.losses), 2 * len(x.losses)),
    ),
    Source("Lattimore and Szepesvari, Bandit Algorithms", "Theorem 28.11"),
    premises=(Premise("losses in the ball", lambda x: all(s.first**2 + s.second**2 <= 1 for s in x.losses)),),
)


# 7. and 8. Pandora's boxes under a budget --------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    low: Annotated[int, Range(0, 3)]
    rise: Annotated[int, Range(0, 3)]
    high_prob: Annotated[Fraction, Range(0, 1, open_low=True, open_high=True)]
    cost: Annotated[Fraction, Range(0, 2, open_low=True)]

    @property
    def law(self):
        return ((self.low, 1 - self.high_prob), (self.low + self.rise, self.high_prob))


@dataclass(frozen=True)
class Boxes:
    first: Box
    second: Box
    budget: Annotated[Fraction, Range(0, 4)]


def policies(x: Boxes):
    """(reward, cost) of every deterministic policy: which box first, and on which of its values to go on."""
    for one, two in ((x.first, x.second), (x.second, x.first)):
        for go_on in itertools.product((False, True), repeat=2):
            reward, cost = Fraction(0), one.cost
            for (value, prob), on in zip(one.law, go_on, strict=True):
                if on:
                    cost += prob * two.cost
                    reward += prob * sum(q * max(value, other) for other, q in two.law)
                else:
                    reward += prob * value
            yield reward, cost


def best_mixture(x: Boxes):
    """The optimum under the budget, as a mixture of two policies, and its multiplier: the slope of the hull."""
    points = list(policies(x))
    best = max(r for r, c in points if c <= x.budget)
    multiplier = Fraction(0)
    for (r0, c0), (r1, c1) in itertools.permutations(points, 2):
        if c0 <= x.budget < c1:
            share = (x.budget - c0) / (c1 - c0)
            value = r0 + share * (r1 - r0)
            if value > best:
                best, multiplier = value, (r1 - r0) / (c1 - c0)
    if multiplier == 0:
        above = [(r - best) / (c - x.budget) for r, c in points if c > x.budget]
        multiplier = max([Fraction(0), *above])
    return best, multiplier


def index(box: Box, multiplier):
    """The root z of E (F - z)^+ = multiplier * cost; the largest value where the multiplier is 0."""
    threshold, (low, p_low), (high, p_high) = multiplier * box.cost, *box.law
    if threshold <= p_high * (high - low):
        return high - threshold / p_high
    return low * p_low + high * p_high - threshold


def envelope(x: Boxes, multiplier):
    """D(lambda) by Weitzman's theorem: E max_i min(F_i, z_i) + lambda B."""
    z = index(x.first, multiplier), index(x.second, multiplier)
    value = sum(
        p * q * max(min(a, z[0]), min(b, z[1]))
        for (a, p), (b, q) in itertools.product(x.first.law, x.second.law)
    )
    return value + multiplier * x.budget


affordable = Premise("more than the cheapest box", lambda x: x.budget > min(x.first.cost, x.second.cost))

pandora_duality = Claim(
    "papers.pandora_duality",
    "Strong duality for Pandora's boxes under an expected budget",
    r"\exists \lambda \ge 0: \sup \{R(\pi) : C(\pi) \le B\} = V(\lambda) + \lambda B",
    Boxes,
    Witness(best_mixture, lambda x, w: Sides(envelope(x, w[1]), "==", w[0])),
    Source("Budgeted Pandora's box", "Theorem 2, as revised"),
    premises=(affordable,),
)


def cheapest_best(x: Boxes):
    """The least expected cost of a policy that earns E max F."""
    points = list(policies(x))
    most = max(r for r, _ in points)
    return min(c for r, c in points if r == most)


pandora_positive = Claim(
    "papers.pandora_positive",
    "The multiplier is positive whenever not all boxes can be opened",
    r"\min c < B < \sum c \implies \lambda^* > 0, \text{ that is } B < C_0",
    Boxes,
    Bound(lambda x: Sides(x.budget, "<", cheapest_best(x))),
    Source("Budgeted Pandora's box", "v3, Lemma 9"),
    premises=(affordable, Premise("less than all", lambda x: x.budget < x.first.cost + x.second.cost)),
    expect="refuted",
)


# 9. and 12. SGD: a rate by moment recursion, and a limit that points to its finite form ---------------------


@dataclass(frozen=True)
class Descent:
    curvatures: Annotated[tuple[Fraction, ...], Length(1, 3), Range(0, 4, open_low=True)]
    start: Annotated[Fraction, Range(-3, 3)]
    step: Annotated[Fraction, Range(0, 2, open_low=True)]
    scale: Annotated[Fraction, Range(0, 2, open_low=True)]
    noise: Annotated[Fraction, Range(0, 4)]
    noise_slope: Annotated[Fraction, Range(0, 2)]
    steps: Annotated[int, Range(0, 6)]

    @property
    def smoothness(self):
        return max(self.curvatures)

    @property
    def convexity(self):
        return min(self.curvatures)

    @property
    def second_moment_slope(self):
        return self.noise_slope + self.scale**2


def moments(x: Descent, rates):
    """E (w - w*)_j^2 along SGD on a diagonal quadratic, noise shared evenly; yields before each step and after."""
    squares = [x.start**2 for _ in x.curvatures]
    yield squares
    for rate in rates:
        gradient = sum(c**2 * s for c, s in zip(x.curvatures, squares, strict=True))
        spread = rate**2 * (x.noise + x.noise_slope * gradient) / len(squares)
        squares = [
            (1 - rate * x.scale * c) ** 2 * s + spread for c, s in zip(x.curvatures, squares, strict=True)
        ]
        yield squares


def gap(x: Descent, squares):
    return sum(c * s for c, s in zip(x.curvatures, squares, strict=True)) / 2


def sgd_sides(x: Descent) -> Sides:
    *_, last = moments(x, [x.step] * x.steps)
    floor = x.step * x.smoothness * x.noise / (2 * x.convexity * x.scale)
    shrink = (1 - x.step * x.convexity * x.scale) ** x.steps
    start = gap(x, [x.start**2] * len(x.curvatures))
    return Sides(gap(x, last), "<=", floor + shrink * (start - floor))


small_step = Premise(
    "step at most mu / (L M_G)", lambda x: x.step * x.smoothness * x.second_moment_slope <= x.scale
)

sgd_rate = Claim(
    "papers.sgd_rate",
    "SGD with a constant step on a strongly convex function",
    r"E[F(w_k) - F^*] \le B + (1 - \alpha c \mu)^k (F(w_0) - F^* - B), \quad B = \frac{\alpha L M}{2 c \mu}",
    Descent,
    Bound(sgd_sides),
    Source("Bottou, Curtis and Nocedal, SIAM Review 2018", "Theorem 4.6"),
    premises=(small_step,),
)


def weighted_gradients(x: Descent) -> Sides:
    rates = [x.step / (k + 1) for k in range(x.steps)]
    paths = list(moments(x, rates))[:-1]
    total = 0 * x.start
    for rate, squares in zip(rates, paths, strict=True):
        total += rate * x.scale**2 * sum(c**2 * s for c, s in zip(x.curvatures, squares, strict=True))
    product = 1 + 0 * x.start
    for rate in rates:
        product *= 1 + rate**2 * x.smoothness**2 * x.second_moment_slope
    start = gap(x, [x.start**2] * len(x.curvatures))
    return Sides(
        total / x.scale**2,
        "<=",
        product * (start + x.smoothness * x.noise / 2 * sum(r**2 for r in rates)) / x.scale,
    )


sgd_weighted_gradients = Claim(
    "papers.sgd_weighted_gradients",
    "The weighted sum of gradients is bounded, with an explicit constant",
    r"\sum_k \alpha_k E |\nabla F|^2 \le \tfrac1\mu \prod (1 + \alpha_k^2 L^2 M_G) (F_0 - F_{\inf} + \tfrac{LM}{2} \sum \alpha_k^2)",
    Descent,
    Bound(weighted_gradients),
    Source("Bottou, Curtis and Nocedal, SIAM Review 2018", "Theorem 4.10, explicit form"),
)

sgd_limit = Claim(
    "papers.sgd_limit",
    "The weighted average of gradients vanishes",
    r"\lim_K A_K^{-1} E \sum_{k<K} \alpha_k |\nabla F(w_k)|^2 = 0",
    Descent,
    Limit("rate", ("papers.sgd_weighted_gradients",), "the right-hand side stays bounded while A_K diverges"),
    Source("Bottou, Curtis and Nocedal, SIAM Review 2018", "Theorem 4.10 (b)"),
    expect="undecidable",
)


# 10. FedAvg: independence of the clients' noise is needed ----------------------------------------------------


@dataclass(frozen=True)
class Clients:
    count: Annotated[int, Range(1, 6)]
    curvature: Annotated[Fraction, Range(0, 2, open_low=True)]
    step: Annotated[Fraction, Range(0, 1, open_low=True)]
    noise: Annotated[Fraction, Range(0, 4)]
    start: Annotated[Fraction, Range(-3, 3)]


def fedavg_sides(x: Clients, variance) -> Sides:
    """One local step on equal quadratics: `variance` is that of the averaged noise."""
    after = (1 - x.step * x.curvature) ** 2 * x.start**2 + x.step**2 * variance
    return Sides(
        x.curvature * after / 2, "<=", (x.start**2 - after) / (2 * x.step) + x.step * x.noise / x.count
    )


capped = Premise("step at most 1/(4L)", lambda x: 4 * x.step * x.curvature <= 1)

fedavg_lemma = Claim(
    "papers.fedavg_lemma",
    "Progress of one round of FedAvg with independent noise",
    r"E F(\bar x^+) - F^* \le \frac{|x - x^*|^2 - E |\bar x^+ - x^*|^2}{2\eta} + \frac{\eta\sigma^2}{M}",
    Clients,
    Bound(lambda x: fedavg_sides(x, x.noise / x.count)),
    Source("Woodworth et al., A field guide to federated optimization", "Lemma 1 (one step)"),
    premises=(capped,),
)

fedavg_shared_noise = Claim(
    "papers.fedavg_shared_noise",
    "The same with noise that the clients share",
    r"E F(\bar x^+) - F^* \le \frac{|x - x^*|^2 - E |\bar x^+ - x^*|^2}{2\eta} + \frac{\eta\sigma^2}{M}",
    Clients,
    Bound(lambda x: fedavg_sides(x, x.noise)),
    Source("Woodworth et al., A field guide to federated optimization", "Lemma 1 without independence"),
    premises=(capped,),
    expect="refuted",
)


# 11. Out of distribution: the loss lies between the extreme eigenvalues of the second moment ----------------


@dataclass(frozen=True)
class Shift:
    """A law on four points of the plane, as weights of (+-a, 0), (b, c), (0, d), and the error w - w*."""

    a: Annotated[Fraction, Range(-2, 2)]
    b: Annotated[Fraction, Range(-2, 2)]
    c: Annotated[Fraction, Range(-2, 2)]
    d: Annotated[Fraction, Range(-2, 2)]
    error: Annotated[tuple[Fraction, ...], Length(2, 2), Range(-2, 2)]


def ood_sides(x: Shift) -> Sides:
    points = [(x.a, 0), (-x.a, 0), (x.b, x.c), (0, x.d)]
    u, v = x.error
    loss = sum((p * u + q * v) ** 2 for p, q in points) / 4
    s11, s12, s22 = (sum(f) / 4 for f in zip(*[(p * p, p * q, q * q) for p, q in points], strict=True))
    root = sqrt((s11 - s22) ** 2 + 4 * s12**2)
    return Sides((s11 + s22 - root) / 2 * (u**2 + v**2), "<=", loss)


ood_sandwich = Claim(
    "papers.ood_sandwich",
    "The out-of-distribution loss is at least the least eigenvalue of the second moment times the error",
    r"\lambda_{\min}(\Sigma) |w - w^*|^2 \le (w - w^*)^T \Sigma (w - w^*) = L_{ood}",
    Shift,
    Bound(ood_sides),
    Source("Fine-tuning can distort pretrained features", "second-moment identity"),
)


# 14. ClockRoPE: Hoeffding for random rotations ---------------------------------------------------------------


@dataclass(frozen=True)
class Rotations:
    pairs: Annotated[int, Range(1, 32)]
    lag: Annotated[Fraction, Range(0, 4)]
    tolerance: Annotated[Fraction, Range(0, 1, open_low=True)]


def off_target(x: Rotations, rng: random.Random) -> bool:
    mean = sum(math.cos(rng.gauss(0, 1) * float(x.lag)) for _ in range(x.pairs)) / x.pairs
    return abs(mean - math.exp(-(float(x.lag) ** 2) / 2)) >= float(x.tolerance)


def rotation_tail(constant: Fraction) -> Tail:
    return Tail(delta=lambda x: 2 * exp(-x.pairs * x.tolerance**2 * constant), event=off_target)


clockrope_hoeffding = Claim(
    "papers.clockrope_hoeffding",
    "Random rotations concentrate around their profile",
    r"P(|S - f(\Delta)| \ge \epsilon) \le 2 e^{-n \epsilon^2 / 2}",
    Rotations,
    rotation_tail(Fraction(1, 2)),
    Source("ClockRoPE", "concentration, aligned pairs"),
)

clockrope_too_good = Claim(
    "papers.clockrope_too_good",
    "The same with sixteen times the exponent",
    r"P(|S - f(\Delta)| \ge \epsilon) \le 2 e^{-8 n \epsilon^2}",
    Rotations,
    rotation_tail(Fraction(8)),
    Source("ClockRoPE", "concentration, a slip in the exponent"),
    expect="refuted",
)
