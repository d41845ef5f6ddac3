"""The claims of the DARE mission: the specification's instances, mutations, errata, and the code they speak for."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import subprocess
import sys
from fractions import Fraction as F
from pathlib import Path

import numpy as np
import pytest

import assay
from assay import Counterexample, Limit, Mean, Sides, Strength, Tail, Truth, catalog, evaluate
from assay.checkpoints import certificate
from assay.core.instance import floated
from assay.core.number import Ball
from assay.missions import dare
from assay.missions.dare import exact, model
from assay.missions.dare.claims import allocation, masks, quantiser, tails
from assay.missions.dare.instances import (
    Bernoulli,
    BernoulliMgf,
    ChernoffPoint,
    Coefficients,
    CountedRow,
    Dropped,
    DroppedAtLevel,
    DroppedLayer,
    DroppedWithGamma,
    EntryPlan,
    ErrorCurve,
    FairRow,
    KeptEntry,
    LatticePoint,
    LinearNetwork,
    MaskedRow,
    Merge,
    Output,
    Outputs,
    Parameter,
    Part,
    PenalisedRow,
    Plan,
    PlannedEntry,
    PlannedLayer,
    PricedLayer,
    Pruned,
    PrunedLayer,
    PrunedMgf,
    PrunedWithGamma,
    Quantised,
    QuantisedMgf,
    QuantisedWeight,
    QuantisedWithGamma,
    Refit,
    RescaleChoice,
    Row,
    SmallerConstant,
    SquareMatrix,
    Stored,
    StoredEntry,
    TwoProbabilities,
    WeightAndInput,
)

CLAIMS = {c.id: c for c in catalog().values() if c.mission == "dare"}
TRUE_CLAIMS = sorted(
    c.id for c in CLAIMS.values() if c.expect == "survives" and not isinstance(c.form, Limit)
)


def fractions(*values):
    return tuple(F(value) for value in values)


def holds(claim_id, x):
    """The verdict, which is TRUE and rigorous."""
    verdict = evaluate(CLAIMS[claim_id], x)
    assert verdict.truth is Truth.TRUE, (claim_id, verdict.reason, verdict.sides)
    assert verdict.strength.rigorous
    return verdict


def refuted(claim_id, x):
    """The genuine counterexample."""
    verdict = evaluate(CLAIMS[claim_id], x)
    counterexample = Counterexample(claim_id, x, verdict)
    assert counterexample.grade == "genuine"
    return verdict


def contains(ball, text):
    value = F(text)
    return abs(Ball.of(ball).midpoint - value) <= F(1, 10**15) * max(1, abs(value))


# --- the catalogue ---------------------------------------------------------------------------------------


def test_claims_that_certificates_name_are_in_the_catalogue():
    assert set(certificate.CLAIMS) <= set(CLAIMS)


def test_claims_refer_to_claims_that_exist():
    for claim in CLAIMS.values():
        implied = claim.form.implied_by if isinstance(claim.form, Limit) else ()
        assert {*claim.uses, *implied} <= set(CLAIMS), claim.id


def test_no_claim_rests_on_itself():
    def rests_on(claim_id, above=()):
        assert claim_id not in above, above
        for used in CLAIMS[claim_id].uses:
            rests_on(used, (*above, claim_id))

    for claim_id in CLAIMS:
        rests_on(claim_id)


def test_formal_status_is_that_of_the_published_mission():
    proved = {c.id for c in CLAIMS.values() if c.proof.status == "proved"}
    assert proved == {"dare.bias", "dare.moments"}
    assert CLAIMS["dare.moments"].proof.name == "DAREx.RescaledErrorMoments"
    assert CLAIMS["dare.moments"].proof.environment == "Lean 4.30.0, Mathlib c5ea003"
    stated = {"coefficient_statistics", "phi_positive", "phi_range", "kearns_saul_mgf", "tail", "threshold"}
    assert {c.id for c in CLAIMS.values() if c.proof.status == "open"} == {f"dare.{name}" for name in stated}


def test_what_holds_to_first_order_is_never_evaluated():
    x = LinearNetwork((Parameter(F(1), F(1), F(1, 2), F(0)),))
    assert isinstance(CLAIMS["dare.network_drift"].form, Limit)
    assert evaluate(CLAIMS["dare.network_drift"], x).truth is Truth.UNKNOWN


def test_reading_the_catalogue_compiles_nothing():
    code = (
        "import sys, assay; assay.catalog(); print(sorted({'numba', 'scipy', 'torch'} & set(sys.modules)));"
        "from assay.missions.dare import derandomise, moments; print(derandomise.__name__, moments.__name__)"
    )
    path = {"PYTHONPATH": str(Path(assay.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **path}
    )
    assert run.stdout.splitlines() == ["[]", "derandomise moments"]


def test_every_public_name_of_the_mission_is_there():
    for name in dare.__all__:
        assert getattr(dare, name).__name__ == name
    assert set(dare.__all__) <= set(dir(dare))
    with pytest.raises(AttributeError, match="no attribute 'derandomize'"):
        _ = dare.derandomize


# --- the specification's instances -----------------------------------------------------------------------

T1 = [
    ((), "1/3", "2", "0", "0", "0"),
    ((1, -2, 3), "0", "1", "0", "0", "0"),
    ((1, -2, 3), "1", "1/2", "2", "0", "4"),
    ((0, 0), "1/2", "1/2", "0", "0", "0"),
    ((1, 2, 3), "1/2", "1/2", "0", "14", "14"),
    ((1, 2, 3), "9/10", "1/10", "0", "126", "126"),
    ((1, 2, 3), "9/10", "5/2", "144/25", "126/625", "20862/625"),
    ((1,), "99/100", "1/100", "0", "99", "99"),
    (("1/2", "-1/3"), "1/4", "2/3", "-1/48", "39/256", "11/72"),
    ((1, 1, 1, 1), "9/10", "13/40", "36/13", "576/169", "144/13"),
]


@pytest.mark.parametrize(("c", "p", "q", "bias", "variance", "square"), T1)
def test_moments_of_the_specification(c, p, q, bias, variance, square):
    x = Pruned(fractions(*c), F(p), F(q))
    for claim_id, value in (("bias", bias), ("variance", variance), ("moments", square)):
        verdict = holds(f"dare.{claim_id}", x)
        assert verdict.sides.lhs == verdict.sides.rhs == F(value)
        assert verdict.strength is Strength.EXACT
    holds("dare.third_cumulant", x)
    holds("dare.fourth_cumulant", x)


@pytest.mark.parametrize(
    ("output", "entry", "p", "optimal", "least"),
    [
        (36, 14, "1/2", "25/36", "252/25"),
        (36, 14, "9/10", "9/20", "28"),
        (1, 1, "99/100", "1", "99/100"),
        ("1/36", "13/36", "1/4", "4", "13/576"),
        (16, 4, "9/10", "13/40", "144/13"),
        ("631/4", "623/4", "4/5", "3123/3155", "393113/3123"),
    ],
)
def test_optimal_rescales_of_the_specification(output, entry, p, optimal, least):
    x = RescaleChoice(F(output), F(entry), F(0), F(p), 1 / F(optimal))
    verdict = holds("dare.optimal_rescale", x)
    assert verdict.sides.lhs == verdict.sides.rhs == F(least)
    assert holds("dare.optimal_mean_square", x).sides.rhs == F(least)
    holds("dare.optimal_gain", x)
    for rival in ("0", "1/2", "1", "2", "4"):
        holds("dare.optimal_rescale", dataclasses.replace(x, inverse_rescale=F(rival)))


def test_dare_is_worse_than_the_base_model_on_incoherent_coefficients():
    coherent, incoherent = fractions(1, 1, 1, 1), fractions(1, -1, 1, 1)
    assert holds("dare.beats_deletion_iff", Dropped(coherent, F(3, 4))).sides.lhs == 1
    assert holds("dare.beats_deletion_iff", Dropped(coherent, F(4, 5))).sides.lhs == 0
    assert holds("dare.beats_deletion_iff", Dropped(incoherent, F(3, 4))).sides.lhs == 0


@pytest.mark.parametrize(
    ("p", "value"),
    [
        ("1/1000", "0.14449622608365993215746"),
        ("999/1000", "0.14449622608365993215746"),
        ("1/10", "0.3640956906507349574456961"),
        ("1/4", "0.4551196133134186968071201"),
        ("3/10", "0.4720890004575314671868181"),
        ("49999999/100000000", "0.4999999999999999333333333"),
        ("99/100", "0.2132697365817990670588533"),
    ],
)
def test_the_coefficient_of_the_specification(p, value):
    phi = exact.kearns_saul(F(p))
    assert abs(phi.midpoint - F(value)) < F(1, 10**22)
    assert phi.radius < F(1, 10**20)
    for name in ("positive", "range", "symmetric", "dominates_variance"):
        holds(f"dare.phi_{name}", Bernoulli(F(p)))


def test_the_coefficient_at_its_ends():
    assert [exact.kearns_saul(F(p)) for p in ("0", "1/2", "1")] == [0, F(1, 2), 0]
    assert exact.kearns_saul(0.25) == model.phi(0.25)


@pytest.mark.parametrize(
    ("p", "t", "value", "bound"),
    [
        ("1/4", 1, "0.107374019508788537", "0.113779903328354674"),
        ("1/4", -1, "0.0779889392428697494", "0.113779903328354674"),
        ("1/2", 2, "0.433780830483027187", "0.5"),
        ("9/10", -3, "0.767655944682648455", "0.819215303964153654"),
        ("3/10", 0, "0", "0"),
    ],
)
def test_moment_generating_functions_of_the_specification(p, t, value, bound):
    verdict = holds("dare.kearns_saul_mgf", BernoulliMgf(F(p), F(t)))
    assert contains(verdict.sides.lhs, value)
    assert contains(verdict.sides.rhs, bound)


@pytest.mark.parametrize("p", ["3/10", "1/1000", "99/100", "1/2"])
@pytest.mark.parametrize("loss", ["1", "1/1000", "1/1000000000000"])
def test_no_smaller_constant_does(p, loss):
    holds("dare.kearns_saul_mgf_tight", SmallerConstant(F(p), F(loss)))


def test_at_its_argument_the_inequality_is_an_equality():
    verdict = evaluate(CLAIMS["dare.kearns_saul_mgf_tight"], SmallerConstant(F(3, 10), F(1, 10**30)))
    assert contains(verdict.sides.lhs, "0.338919144154881445")
    assert contains(verdict.sides.rhs, "0.338919144154881445")


def test_a_constant_that_is_not_smaller_has_no_witness():
    x = SmallerConstant(F(3, 10), F(-1, 10**6))
    claim = CLAIMS["dare.kearns_saul_mgf_tight"].without("0 < loss <= 1")
    verdict = evaluate(claim, x)
    assert (verdict.truth, verdict.reason) == (Truth.FALSE, "a dual proof shows that no witness exists")


T4 = [
    ("1/2", (1,), "1/2", "1.6651092223153955127"),
    ("1/2", (1, 1, 1, 1), "1/20", "5.432406062962477994"),
    ("99/100", (1,), "1/200", "113.03973043584752665"),
    ("1/10", (1,) * 12 + (-1,) * 4, "1/20", "5.1507738602529506022"),
    ("3/10", (0,) * 7, "1/100", "0"),
]


@pytest.mark.parametrize(("p", "c", "gamma", "value"), T4)
def test_thresholds_of_equation_8(p, c, gamma, value):
    x = DroppedWithGamma(fractions(*c), F(p), F(gamma))
    verdict = holds("dare.threshold", x)
    assert verdict.sides.rhs == F(gamma)
    square = Ball.of(tails.threshold_square(tails.as_pruned(x), x.gamma))
    assert abs(square.midpoint - F(value) ** 2) < F(1, 10**12)
    holds("dare.threshold_rescaled", PrunedWithGamma(x.coefficients, x.drop_prob, F(2), x.gamma))


def test_equation_8_asks_for_an_open_probability():
    for p in (0, 1):
        verdict = evaluate(CLAIMS["dare.threshold"], DroppedWithGamma(fractions(1), F(p), F(1, 2)))
        assert verdict.reason == "premise broken: 0 < drop_prob < 1"


@pytest.mark.parametrize(
    ("p", "c", "level", "value"),
    [
        ("1/2", (2,), 2, "1.213061319425267"),
        ("1/10", (1, 2, 3), 5, "0.03764657389919326"),
        ("9/10", (1,), 30, "3.679609779805162e-11"),
        ("99/100", (1,), 99, "0.02019254990163652"),
    ],
)
def test_tails_of_the_specification(p, c, level, value):
    verdict = holds("dare.tail", DroppedAtLevel(fractions(*c), F(p), F(level)))
    assert abs(float(verdict.sides.rhs) / float(value) - 1) < 1e-14


T5 = [  # coefficients, p, gamma, exact quantile, Kearns-Saul, signed
    ((1,), "99/100", "1/200", 99, 113.039730435847, 106.300082271391),
    ((1, 1), "1/2", "3/5", 0, 2.19451389088876, 2.19451389088876),
    ((1, -2, 3), "1/2", "3/10", 4, 7.28830292844670, 7.28830292844670),
    ((1, 2, 3, 4), "9/10", "1/20", 30, 63.4768882170413, 57.6188120647339),
]


@pytest.mark.parametrize(("c", "p", "gamma", "quantile", "ks", "signed"), T5)
def test_tail_thresholds_of_the_specification(c, p, gamma, quantile, ks, signed):
    x = DroppedWithGamma(fractions(*c), F(p), F(gamma))
    law = tails.dare_error(x)
    assert tails.beyond(law, F(quantile) ** 2) <= x.gamma
    if quantile:
        assert exact.probability(law, lambda h: abs(h) >= quantile) > x.gamma
    assert math.sqrt(float(tails.threshold_square(tails.as_pruned(x), x.gamma))) == pytest.approx(
        ks, rel=1e-13
    )
    upper, lower = (float(v) for v in tails.signed_proxies(x))
    both = math.exp(-(signed**2) / (2 * upper)) + math.exp(-(signed**2) / (2 * lower))
    assert both == pytest.approx(float(x.gamma), rel=1e-12)
    for claim_id in ("dare.threshold", "dare.signed_threshold", "dare.signed_never_worse"):
        holds(claim_id, x)


def test_a_far_tail_of_the_specification():
    """n = 40, p = 1/2: 38 or more dropped, at 3.42 times its exact probability by the best exponential bound."""
    law = exact.law_of_sum([tuple(exact.error_atoms(F(1), F(1, 2), F(1, 2)))] * 40)
    far = exact.probability(law, lambda h: exact.reaches(h, F(36)))
    assert float(far) == pytest.approx(7.46695150155574e-10, rel=1e-14)
    t = F(math.log(19.0)) / 2
    bound = math.exp(float(exact.log_mgf(law, t) - t * 36))
    assert bound / float(far) == pytest.approx(3.42, abs=0.005)


T6 = [
    (("1/3",), (1,), "1/2", "1/2", 1, 2, "0", "2/9", "2/9"),
    (("1/3", "-1/2"), (2, 1), "3/4", "1/4", 1, 3, "0", "79/36", "79/36"),
    (("1/3", "-1/2"), (2, 1), "0", "1", 1, 3, "0", "1/36", "1/36"),
    (("1/3", "-1/2"), (2, 1), "1", "2", 1, 3, "1/6", "0", "1/36"),
    (("1/3", "-1/2"), (2, 1), "3/4", "3/2", 1, 3, "5/36", "79/1296", "13/162"),
    (("0",), (1,), "1/2", "1/2", 1, 1, "0", "0", "0"),
]


@pytest.mark.parametrize(("w", "x", "p", "q", "scale", "levels", "bias", "variance", "square"), T6)
def test_drop_and_quantise_of_the_specification(w, x, p, q, scale, levels, bias, variance, square):
    entries = tuple(WeightAndInput(*pair) for pair in zip(fractions(*w), fractions(*x), strict=True))
    instance = Quantised(entries, F(p), F(q), F(scale), levels)
    assert holds("dare.quantised_bias", instance).sides.lhs == F(bias)
    assert holds("dare.quantised_moments", instance).sides.lhs == F(square) == F(variance) + F(bias) ** 2
    fields = [getattr(instance, f.name) for f in dataclasses.fields(instance)]
    for t in (-2, 0, 1):
        holds("dare.quantised_proxy", QuantisedMgf(*fields, F(t)))
    for gamma in ("1/100", "1/2", "99/100"):
        holds("dare.quantised_threshold", QuantisedWithGamma(*fields, F(gamma)))


@pytest.mark.parametrize(
    ("weight", "scale", "levels", "variance"),
    [
        ("0", 1, 1, "0"),
        ("1", 1, 3, "0"),
        ("-1/3", 1, 2, "1/18"),
        ("1/2", 1, 2, "0"),
        ("5/7", 2, 5, "33/1225"),
        ("-2", 2, 4, "0"),
    ],
)
def test_quantised_weights_of_the_specification(weight, scale, levels, variance):
    x = QuantisedWeight(F(weight), F(scale), levels)
    assert holds("dare.quantiser_unbiased", x).sides.lhs == F(weight)
    assert holds("dare.quantiser_variance", x).sides.lhs == F(variance)
    holds("dare.quantiser_variance_bound", x)
    holds("dare.quantiser_range", x)
    assert dict(exact.grid_atoms(F(weight), F(scale) / levels)) == dict(
        model.quantise_atoms(F(weight), F(scale), levels)
    )


def test_a_weight_outside_the_grid_says_nothing():
    for x in (QuantisedWeight(F(2), F(1), 1), QuantisedWeight(F(0), F(0), 1), QuantisedWeight(F(0), F(1), 0)):
        assert evaluate(CLAIMS["dare.quantiser_unbiased"], x).reason.startswith("premise broken")


def triangle(*rows):
    """The upper triangle of a 4 x 4 matrix whose leading block is given row by row."""
    size = len(rows)
    return fractions(*(rows[i][j] if max(i, j) < size else 0 for i in range(4) for j in range(i, 4)))


IDENTITY = ((1, 0), (0, 1))
T7_MATRIX = ((2, -1, 0), (-1, 2, 1), (0, 1, 3))
T7 = [
    ((1, 1), IDENTITY, 1, "1/2", "2", "2"),
    ((1, 2), ((2, 1), (1, 2)), 1, "1/2", "6", "10"),
    ((1, 2, -1), T7_MATRIX, 1, "1/3", "34", "26"),
    ((1, 2, -1), T7_MATRIX, 0, "1/3", "5", "5"),
    ((1, 2, -1), T7_MATRIX, 3, "1", "0", "0"),
    ((1, 2, -1), T7_MATRIX, 2, "5/2", "247/75", "709/225"),
    ((3,), ((2,),), 1, "1/2", "18", "18"),
]


@pytest.mark.parametrize(("w", "moment", "kept", "q", "fixed", "bernoulli"), T7)
def test_fixed_size_masks_of_the_specification(w, moment, kept, q, fixed, bernoulli):
    x = CountedRow(fractions(*w), triangle(*moment), kept, F(q))
    assert holds("dare.fixed_size_expectation", x).sides.rhs == F(fixed)
    assert holds("dare.derandomised_fixed_size", x).sides.rhs == F(fixed)
    assert holds("dare.derandomised_count", x).sides.lhs == kept
    drop_prob = 1 - F(kept, len(w))
    row = PenalisedRow(x.weights, x.second_moment, drop_prob, F(q), F(0))
    assert holds("dare.derandomised_bernoulli", row).sides.rhs == F(bernoulli)
    if len(w) > 1 and kept and F(q) == 1 - drop_prob:
        fair = FairRow(x.weights, x.second_moment, kept)
        assert holds("dare.fixed_vs_bernoulli", fair).sides.lhs == F(fixed)
        holds("dare.fixed_beats_bernoulli_iff", fair)


T8 = [
    ((1, 2), "5/2", ("2/5", "4/5")),
    ((1, 2), "3/2", ("6/13", "12/13")),
    ((1, 10), "1", ("1/2", "1")),
    ((1, 2), "0", ("1", "1")),
    ((0, 2), "4", ("0", "1/2")),
]


@pytest.mark.parametrize(("scores", "budget", "keep"), T8)
def test_allocations_of_the_specification(scores, budget, keep):
    plan = Plan(tuple(PlannedLayer(F(s), F(1), F(1)) for s in scores), F(budget))
    assert allocation.layers_task(plan).optimal() == list(fractions(*keep))
    holds("dare.allocation_feasible_and_optimal", plan)
    entries = EntryPlan(tuple(PlannedEntry(F(s), F(1), F(1)) for s in scores), F(budget))
    assert holds("dare.entrywise_allocation", entries).sides.lhs == sum(fractions(*keep))


def test_a_rival_over_the_budget_says_nothing():
    plan = Plan((PlannedLayer(F(1), F(1), F(1, 10)),), F(1))
    verdict = evaluate(CLAIMS["dare.allocation_feasible_and_optimal"], plan)
    assert verdict.reason == "premise broken: the rival plan is feasible"


# --- errata ----------------------------------------------------------------------------------------------


def test_the_printed_theorem_is_refuted():
    x = DroppedWithGamma(fractions(1), F(99, 100), F(1, 200))
    verdict = refuted("dare.printed_theorem_3_1", x)
    assert verdict.sides.lhs == F(1, 100)
    assert verdict.sides.rhs == F(1, 200)
    holds("dare.threshold", x)
    holds("dare.signed_threshold", x)


def test_the_printed_low_branch_is_refuted_as_read():
    x = DroppedWithGamma(fractions(1), F(1, 2), F(3, 4))
    assert refuted("dare.printed_theorem_3_1_low", x).sides.lhs == 1
    holds("dare.threshold", x)


def test_the_signed_refinement_fails_on_the_wrong_side():
    x = DroppedAtLevel(fractions(1), F(99, 100), F(99))
    assert refuted("dare.signed_wrong_side", x).sides.lhs == F(1, 100)
    holds("dare.signed_tail_down", x)
    low = DroppedAtLevel(fractions(-1), F(99, 100), F(99))  # on its own side the same proxy holds
    holds("dare.signed_tail_up", low)


def test_the_non_strict_threshold_fails_where_all_coefficients_are_0():
    x = DroppedWithGamma(fractions(0, 0), F(1, 2), F(1, 10))
    assert refuted("dare.threshold_nonstrict", x).sides.lhs == 1
    assert holds("dare.threshold", x).sides.lhs == 0


def test_the_diagonal_is_not_enough_for_a_general_rescale():
    rows, moment = (Row(fractions(1, 1, 0)),), fractions(1, 1, 0, 1, 0, 0)
    verdict = refuted("dare.diagonal_layer_error", PrunedLayer(rows, moment, F(1, 2), F(1)))
    assert verdict.sides.lhs == F(3, 2)
    assert verdict.sides.rhs == F(1, 2)
    holds("dare.layer_error", PrunedLayer(rows, moment, F(1, 2), F(1)))
    holds("dare.layer_error_diagonal", DroppedLayer(rows, moment, F(1, 2)))


def test_a_factor_4_in_the_coefficient_is_refuted():
    verdict = refuted("dare.phi_over_four", BernoulliMgf(F(1, 2), F(2)))
    assert verdict.sides.rhs == F(1, 8)
    assert contains(verdict.sides.lhs, "0.433780830483027187")


def test_each_erratum_is_expected_to_be_refuted():
    expected = {c.id for c in CLAIMS.values() if c.expect == "refuted"}
    names = "printed_theorem_3_1 printed_theorem_3_1_low signed_wrong_side threshold_nonstrict diagonal_layer_error phi_over_four"
    assert expected == {f"dare.{name}" for name in names.split()}


# --- mutations: each right side, damaged, is refuted -----------------------------------------------------

CURVE = ErrorCurve(F(1), F(1, 4), F(3, 4))
KEPT = (KeptEntry(F(1), True, fractions(1, 0, 0)), KeptEntry(F(1), False, fractions(1, 1, 0)))
LAYER = (Row(fractions(1, 2, 0)), Row(fractions(-1, 0, 1)))
MOMENT3 = fractions(2, 1, 0, 2, 0, 1)
PARAMETERS = (Parameter(F(1), F(2), F(1, 2), F(0)), Parameter(F(1, 3), F(-1), F(1, 4), F(1, 2)))
ROW = (fractions(1, 2, -1), triangle(*T7_MATRIX))
TWO = (WeightAndInput(F(1, 3), F(2)), WeightAndInput(F(-1, 2), F(1)))
PAIR = fractions(-4, 4)
STORED = StoredEntry(F(7, 6), F(4), F(11, 12))

MUTATIONS = {
    "coefficient_statistics": ("9/10", Coefficients(fractions(1, 2))),
    "bias": ("9/10", Pruned(fractions(1, 2), F(1, 2), F(1))),
    "moments": ("9/10", Pruned(fractions(1, 2), F(1, 2), F(1))),
    "variance": ("9/10", Pruned(fractions(1, 2), F(1, 2), F(1))),
    "third_cumulant": ("9/10", Pruned(fractions(1, 2), F(1, 4), F(1))),
    "fourth_cumulant": ("9/10", Pruned(fractions(1, 2), F(1, 2), F(1))),
    "quantiser_unbiased": ("9/10", QuantisedWeight(F(1, 3), F(1), 2)),
    "quantiser_range": ("9/10", QuantisedWeight(F(1, 100), F(1), 1)),
    "quantiser_variance": ("9/10", QuantisedWeight(F(1, 3), F(1), 2)),
    "quantiser_variance_bound": ("99/100", QuantisedWeight(F(1, 2), F(1), 1)),
    "quantised_bias": ("9/10", Quantised(TWO, F(1, 2), F(1), F(1), 3)),
    "quantised_moments": ("9/10", Quantised(TWO, F(1, 2), F(1), F(1), 3)),
    "merged_variance": ("9/10", Merge((Part(F(2), fractions(1, 2), F(1, 2), F(1, 2)),))),
    "phi_range": ("99/100", Bernoulli(F(1, 2))),
    "phi_symmetric": ("99/100", Bernoulli(F(1, 3))),
    "phi_monotone": ("99/100", TwoProbabilities(F(23, 48), F(1, 2))),
    "phi_dominates_variance": ("99/100", Bernoulli(F(1, 2))),
    "kearns_saul_mgf": ("99/100", BernoulliMgf(F(5, 24), F(8, 3))),
    "mgf_sum": ("99/100", PrunedMgf(fractions(4), F(2, 3), F(4), F(-4, 3))),
    "tail": ("4/5", DroppedAtLevel(fractions(1), F(1, 2), F(1))),
    "threshold": ("1/2", DroppedWithGamma(PAIR, F(5, 8), F(3, 4))),
    "threshold_rescaled": ("1/2", PrunedWithGamma(PAIR, F(1, 2), F(1), F(3, 4))),
    "signed_tail_up": ("9/10", DroppedAtLevel(fractions("11/3"), F(23, 24), F(1))),
    "signed_tail_down": ("9/10", DroppedAtLevel(fractions(-4), F(11, 12), F(1))),
    "signed_threshold": ("1/2", DroppedWithGamma(PAIR, F(5, 8), F(3, 4))),
    "signed_never_worse": ("99/100", DroppedWithGamma(fractions(1), F(1, 2), F(1, 4))),
    "chernoff": ("9/10", ChernoffPoint(fractions(1), F(19, 24), F(1), F(1, 2))),
    "chernoff_never_worse": ("99/100", DroppedAtLevel(fractions(4, 4, -1), F(11, 24), F(1))),
    "essential_supremum": ("9/10", Dropped(fractions(1, -2), F(1, 3))),
    "lattice_residual": ("9/10", LatticePoint(fractions(1, 1, 4), F(5, 8), F(1), F(17, 12), F(1, 24))),
    "optimal_rescale": ("99/100", RescaleChoice(F(36), F(14), F(0), F(1, 2), F(36, 25))),
    "optimal_mean_square": ("9/10", RescaleChoice(F(36), F(14), F(1), F(1, 2), F(1))),
    "optimal_never_worse_than_deleting": ("9/10", RescaleChoice(F(1), F(240), F(8), F(23, 24), F(1))),
    "optimal_gain": ("9/10", RescaleChoice(F(36), F(14), F(1), F(1, 2), F(1))),
    "optimal_shrinks": ("99/100", Dropped(fractions(1, 1), F(1, 2))),
    "optimal_exceeds_one_iff": ("9/10", Dropped(fractions(1, 2), F(1, 2))),
    "beats_deletion_iff": ("0", Dropped(fractions(1, 1, 1, 1), F(3, 4))),
    "refit_never_worse": ("9/10", Refit(KEPT, F(2))),
    "quantised_proxy": ("9/10", QuantisedMgf((WeightAndInput(F(1), F(-1)),), F(0), F(17, 6), F(2), 7, F(2, 3))),
    "quantised_threshold": ("2/5", QuantisedWithGamma(
        (WeightAndInput(F(-1, 2), F(2)), WeightAndInput(F(1), F(-3, 2))), F(0), F(19, 6), F(43, 24), 6, F(23, 24)
    )),
    "realised_mean": ("9/10", Stored((STORED,), F(1, 2), F(1, 2), F(1, 2))),
    "realised_tail": ("3/4", Stored((STORED,), F(17, 24), F(11, 3), F(11, 12))),
    "layer_error": ("9/10", PrunedLayer(LAYER, MOMENT3, F(1, 2), F(1))),
    "layer_error_diagonal": ("9/10", DroppedLayer(LAYER, MOMENT3, F(1, 2))),
    "norm_tail": ("2/5", Outputs((Output(PAIR),), F(1, 3), F(10, 3), F(23, 24))),
    "simultaneous_thresholds": ("1/2", Outputs((Output(fractions(-2, "7/3")),), F(1, 2), F(1, 6), F(3, 4))),
    "operator_norm_tail": ("1/4", SquareMatrix(fractions(2, "3/2", "5/6", "2/3"), F(1, 2), F(1), F(1))),
    "linear_network_unbiased": ("9/10", LinearNetwork(PARAMETERS)),
    "linear_network_drift": ("9/10", LinearNetwork(PARAMETERS)),
    "derandomised_bernoulli": ("9/10", PenalisedRow(*ROW, F(1), F(1, 2), F(1))),
    "derandomised_fixed_size": ("9/10", CountedRow(*ROW, 0, F(1, 2))),
    "derandomised_count": ("1/2", CountedRow(*ROW, 2, F(1, 2))),
    "fixed_size_expectation": ("9/10", CountedRow(*ROW, 2, F(1, 2))),
    "fixed_vs_bernoulli": ("9/10", FairRow(fractions(1, -1), triangle((1, 1), (1, 1)), 1)),
    "fixed_beats_bernoulli_iff": ("9/10", FairRow(*ROW, 1)),
    "swap_change": ("9/10", MaskedRow(*ROW, (True, False, True, False), F(1, 2))),
    "allocation_feasible_and_optimal": ("99/100", Plan((PlannedLayer(F(1), F(2), F(1)),), F(0))),
    "entrywise_allocation": ("99/100", EntryPlan((PlannedEntry(F(1), F(1), F(1)),), F(0))),
    "best_error_curve": ("99/100", CURVE),
    "priced_keep_probability": ("99/100", PricedLayer(F(1, 2), F(2), F(1))),
}  # fmt: skip

NO_CONSTANT = {
    "dare.phi_positive": "its left side is 0, so there is no constant to damage",
    "dare.kearns_saul_mgf_tight": "a witness that fails refutes its producer, never the claim",
}


def damaged(claim, factor):
    """The claim with a right side that is smaller by 1 - factor of its modulus."""

    def smaller(value):
        return value - (1 - factor) * abs(value)

    form = claim.form
    if isinstance(form, Mean):
        form = dataclasses.replace(form, bound=lambda x: smaller(claim.form.bound(x)))
    elif isinstance(form, Tail):
        form = dataclasses.replace(form, delta=lambda x: smaller(claim.form.delta(x)))
    else:

        def sides(x):
            found = claim.form.sides(x)
            return Sides(found.lhs, found.relation, smaller(found.rhs))

        form = dataclasses.replace(form, sides=sides)
    return dataclasses.replace(claim, form=form)


def test_every_true_claim_has_a_mutation_or_a_reason():
    assert {f"dare.{name}" for name in MUTATIONS} | set(NO_CONSTANT) == set(TRUE_CLAIMS)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_damaged_constant_is_refuted(name):
    factor, x = MUTATIONS[name]
    holds(f"dare.{name}", x)
    verdict = evaluate(damaged(CLAIMS[f"dare.{name}"], F(factor)), x)
    assert verdict.truth is Truth.FALSE, verdict.sides
    assert verdict.strength.rigorous


@pytest.mark.parametrize("name", MUTATIONS)
def test_claims_evaluate_on_floats(name):
    _, x = MUTATIONS[name]
    verdict = evaluate(CLAIMS[f"dare.{name}"], floated(x))
    exact_verdict = evaluate(CLAIMS[f"dare.{name}"], x)
    assert verdict.truth is not Truth.FALSE
    assert float(verdict.sides.lhs) == pytest.approx(float(exact_verdict.sides.lhs), rel=1e-9, abs=1e-12)
    assert float(verdict.sides.rhs) == pytest.approx(float(exact_verdict.sides.rhs), rel=1e-9, abs=1e-12)


def test_a_shared_seed_breaks_the_merge():
    """Two halves of one delta under one mask are that delta, whose variance is twice the independent sum."""
    whole = Merge((Part(F(2), fractions(1), F(1, 2), F(1, 2)),))
    halves = Merge((Part(F(1), fractions(1), F(1, 2), F(1, 2)),) * 2)
    assert (
        holds("dare.merged_variance", whole).sides.lhs == 2 * holds("dare.merged_variance", halves).sides.lhs
    )


# --- the shipped code computes what the claims speak of --------------------------------------------------


def random_fractions(rng, count, low=-4, high=4):
    return tuple(low + (high - low) * F(rng.randint(0, 24), 24) for _ in range(count))


@pytest.mark.parametrize("seed", range(20))
def test_tail_thresholds_are_those_of_the_code(seed):
    rng = random.Random(seed)
    c, p = random_fractions(rng, 4), F(rng.randint(1, 23), 24)
    x = DroppedWithGamma((*c, F(1)), p, F(rng.randint(1, 23), 24))
    floats, prob, gamma = [float(v) for v in x.coefficients], float(p), float(x.gamma)
    square = float(tails.threshold_square(tails.as_pruned(x), x.gamma))
    assert dare.tail_threshold(floats, prob, gamma, "ks").threshold == pytest.approx(
        math.sqrt(square), rel=1e-12
    )
    law = model.centred_law(floats, prob)
    upper, lower = tails.signed_proxies(x)
    assert law.upper_proxy() == pytest.approx(float(upper), rel=1e-12)
    assert law.mirror().upper_proxy() == pytest.approx(float(lower), rel=1e-12)
    assert law.log_mgf(0.5).value == pytest.approx(
        float(exact.log_mgf(tails.dare_error(x), F(1, 2))), rel=1e-11
    )
    signed = dare.tail_threshold(floats, prob, gamma, "signed").threshold
    chernoff = dare.tail_threshold(floats, prob, gamma, "chernoff").threshold
    for threshold in (signed, chernoff):
        assert tails.beyond(tails.dare_error(x), F(threshold * (1 + 1e-9)) ** 2) <= x.gamma


@pytest.mark.parametrize("seed", range(10))
def test_masks_and_plans_are_those_of_the_code(seed):
    rng = random.Random(seed)
    weights, upper = random_fractions(rng, 4, -3, 3), random_fractions(rng, 10, -2, 4)
    row = CountedRow(weights, upper, rng.randint(0, 4), F(rng.randint(1, 24), 12))
    moment = masks.moment_of(row)
    assert dare.fixed_size_expectation(weights, moment, row.kept, row.rescale) == masks.closed_fixed_size(
        weights, moment, row.kept, row.rescale
    )
    layers = tuple(PlannedLayer(F(rng.randint(0, 20), 2), F(rng.randint(1, 4)), F(1)) for _ in range(4))
    plan = Plan(layers, F(rng.randint(0, 400), 4))
    task = allocation.layers_task(plan)
    energies = [float(layer.size * layer.score**2) for layer in layers]
    shipped = dare.allocate(energies, [float(layer.size) for layer in layers], float(plan.budget))
    np.testing.assert_allclose(shipped.keep_prob, [float(k) for k in task.optimal()], rtol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_realised_proxy_is_that_of_the_certificates(seed):
    rng = random.Random(seed)
    entries = tuple(
        StoredEntry(
            *random_fractions(rng, 1, -2, 2), *random_fractions(rng, 1, 0, 4), *random_fractions(rng, 1, 0, 2)
        )
        for _ in range(3)
    )
    x = Stored(entries, F(rng.randint(0, 8), 8), F(rng.choice([1, 2, 3, 4]), 2), F(1, 10))
    fourths = [float(sum(e.moment**2 * v**4 for e, v in zip(entries, values, strict=True))) for values in (
        [e.delta for e in entries], [e.step for e in entries]
    )]  # fmt: skip
    energy = sum(e.moment * e.delta**2 for e in entries)
    noise = sum(e.moment * (model.quantiser_variance(e.delta, e.step) if e.step else 0) for e in entries)
    facts = certificate.Facts(float(energy), float(energy), float(noise), 0.0, 0.0, 0.0, 0.0, *fourths)
    proxy = certificate.realised_proxy(facts, x.drop_prob, float(x.rescale))
    assert proxy == pytest.approx(float(quantiser.realised_proxy(x)), rel=1e-12)
    mean = certificate.expected(facts, x.drop_prob, float(x.rescale)).realised_mean
    assert float(mean) == pytest.approx(float(holds("dare.realised_mean", x).sides.lhs), rel=1e-12)
    holds("dare.realised_tail", x)


@pytest.mark.parametrize("seed", range(5))
def test_layer_bounds_are_those_of_the_code(seed):
    rng = random.Random(seed)
    rows = tuple(Output(random_fractions(rng, 3)) for _ in range(2))
    x = Outputs(rows, F(rng.randint(1, 7), 8), F(1, 2), F(1, 10))
    delta = np.array([[float(v) for v in row.coefficients] for row in rows])
    threshold = dare.norm_threshold(delta, np.ones(3), float(x.drop_prob), 0.1, rescale=0.5)
    squares = [tails.centred_error(Pruned(row.coefficients, x.drop_prob, x.rescale)) for row in rows]
    norm = exact.law_of_sum([[(h * h, prob) for h, prob in law.items()] for law in squares])
    assert (
        exact.probability(norm, lambda v: exact.exceeds(v, F(threshold)))
        == holds("dare.norm_tail", x).sides.lhs
    )


def test_an_enclosed_probability_is_between_its_ends():
    law = {F(0): F(1, 4), F(1): F(1, 4), F(2): F(1, 2)}
    blurred = Ball(F(1, 2), F(3, 2))
    assert exact.probability(law, lambda v: exact.exceeds(v, blurred)) == Ball(F(1, 2), F(3, 4))
    assert exact.probability(law, lambda v: exact.reaches(v, F(1))) == F(3, 4)
