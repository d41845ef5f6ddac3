"""Laws of samplers: exact where the randomness is finite, and None elsewhere."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import pytest

from assay import Claim, Mean, Range, Source, Strength, Tail, Truth, evaluate
from assay.core.enumeration import MAX_PATHS, expectation_of, failure_of, law_of
from assay.core.errors import InputError

THIRD = Fraction(1, 3)


def merged(law):
    total = Counter()
    for value, prob in law:
        total[value] += prob
    return dict(total)


DRAWS = {
    "choice": lambda _, rng: rng.choice("ab"),
    "randrange": lambda _, rng: rng.randrange(2, 9, 3),
    "randint": lambda _, rng: rng.randint(1, 3) + rng.randint(1, 3),
    "choices": lambda _, rng: sum(rng.choices((0, 1, 5), (1, 0, 3), k=2)),
    "cumulative": lambda _, rng: rng.choices((0, 1), cum_weights=(1, 4))[0],
    "sample": lambda _, rng: sum(rng.sample(range(4), 2)),
    "shuffle": lambda _, rng: shuffled(rng),
    "bits": lambda _, rng: rng.getrandbits(2),
    "below": lambda _, rng: int(rng.random() < THIRD),
    "above": lambda _, rng: int(rng.random() >= 0.25),
    "twice": lambda _, rng: between(rng),
    "stops": lambda _, rng: next((i for i in range(5) if rng.random() < THIRD), 5),
}


def shuffled(rng):
    order = [0, 1, 2]
    rng.shuffle(order)
    return order[0]


def between(rng):
    u = rng.random()
    return 0 if u < THIRD else (1 if u < Fraction(2, 3) else 2)


@pytest.mark.parametrize("name", DRAWS)
def test_the_law_is_that_of_the_sampler(name):
    """Weights add up to 1, and 4000 real draws have the frequencies that it says, within five deviations."""
    draw = DRAWS[name]
    walked = [
        (v, p)
        for v, p in law_of(lambda x, rng: ord(draw(x, rng)) if name == "choice" else draw(x, rng), None)
    ]
    law = merged(walked)
    assert sum(law.values()) == 1
    rng = random.Random(7)
    seen = Counter(ord(v) if name == "choice" else v for v in (draw(None, rng) for _ in range(4000)))
    assert set(seen) <= set(law)
    for value, prob in law.items():
        assert abs(seen[value] - 4000 * prob) <= 5 * float(4000 * prob * (1 - prob)) ** 0.5


@pytest.mark.parametrize(
    "draw",
    [
        lambda _, rng: rng.gauss(0, 1) > 0,
        lambda _, rng: rng.uniform(0, 1) < 1,
        lambda _, rng: rng.random() * 2 < 1,
        lambda _, rng: rng.random(),
        lambda _, rng: rng.choice((0.5, 1.5)),
        lambda _, rng: sum(rng.choice((0, 1)) for _ in range(20)),
        lambda _, rng: endless(rng),
    ],
)
def test_what_is_not_finite_or_not_exact_is_left_to_sampling(draw):
    assert law_of(draw, None) is None


def endless(rng):
    count = 0
    while rng.random() < THIRD:
        count += 1
    return count


def test_too_many_paths():
    assert len(law_of(lambda _, rng: rng.randrange(MAX_PATHS), None)) == MAX_PATHS
    assert law_of(lambda _, rng: rng.randrange(MAX_PATHS + 1), None) is None


def test_undecided_draws_make_an_enclosure():
    law = law_of(lambda _, rng: rng.choice((True, False, None)), None)
    assert (failure_of(law).low, failure_of(law).high) == (THIRD, 2 * THIRD)
    assert expectation_of([(2, THIRD), (-1, 2 * THIRD)]) == 0


@dataclass(frozen=True)
class Coin:
    prob: Annotated[Fraction, Range(0, 1)]


def claim(form):
    return Claim("coins.claim", "t", "s", Coin, form, Source("nobody", "nowhere"))


def flips(x, rng):
    return sum(rng.random() < x.prob for _ in range(3))


def test_a_sampled_mean_is_evaluated_exactly_where_no_draws_are_asked():
    mean = claim(Mean(bound=lambda x: 3 * x.prob, relation="==", draw=flips, support=lambda x: (0, 3)))
    verdict = evaluate(mean, Coin(THIRD))
    assert (verdict.truth, verdict.strength, verdict.facts["paths"]) == (Truth.TRUE, Strength.EXACT, 8)
    assert evaluate(mean, Coin(THIRD), draws=50).strength is Strength.STATISTICAL


def test_a_sampled_tail_is_refuted_exactly():
    tail = claim(Tail(delta=lambda x: x.prob**4, event=lambda x, rng: flips(x, rng) == 3))
    verdict = evaluate(tail, Coin(THIRD))
    assert (verdict.truth, verdict.strength) == (Truth.FALSE, Strength.EXACT)
    assert (verdict.sides.lhs, verdict.sides.rhs) == (Fraction(1, 27), Fraction(1, 81))


def test_a_path_outside_the_support_is_said():
    mean = claim(Mean(bound=lambda x: 3, draw=flips, support=lambda x: (0, 2)))
    with pytest.raises(InputError, match=r"outside the declared support \[0, 2\]"):
        evaluate(mean, Coin(THIRD))
