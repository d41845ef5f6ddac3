"""Layer certificates (specification 1.g)."""

import itertools
import math

import numpy as np
import pytest

from assay.core.errors import InputError
from assay.missions.dare.algorithm import layers, tails


def enumerated(delta, p, q):
    """All errors E = dW - pruned dW with their probabilities."""
    for mask in itertools.product((0, 1), repeat=delta.size):
        kept = np.reshape(mask, delta.shape)
        yield delta * (1 - kept / q), (1 - p) ** kept.sum() * p ** (delta.size - kept.sum())


@pytest.mark.parametrize(("p", "q"), [(0.75, None), (0.75, 0.6), (0.3, 2.0), (0.0, 1.0), (1.0, 0.5)])
def test_expected_layer_error_by_enumeration(p, q):
    rng = np.random.default_rng(0)
    delta, x = rng.standard_normal((2, 3)), rng.standard_normal((5, 3))
    moment = x.T @ x / 5
    value = layers.expected_layer_error(delta, moment, p, rescale=q)
    truth = sum(prob * np.trace(e @ moment @ e.T) for e, prob in enumerated(delta, p, q or 1 - p))
    assert value.mean_square == pytest.approx(truth, rel=1e-12)
    assert value.mean_square == value.bias + value.variance
    if q is None:
        assert layers.expected_layer_error(delta, moment.diagonal(), p) == value


def test_general_rescale_needs_the_full_moment():
    with pytest.raises(InputError, match="needs the full matrix"):
        layers.expected_layer_error([[1.0]], [1.0], 0.5, rescale=1.0)


@pytest.mark.parametrize("method", ["ks", "chernoff-split"])
def test_output_thresholds_hold_together(method):
    rng = np.random.default_rng(1)
    delta, x, p, gamma = rng.standard_normal((2, 4)), rng.standard_normal((3, 4)), 0.6, 0.2
    bound = layers.output_thresholds(delta, x, p, gamma, method)
    assert bound.shape == (3, 2)
    failing = sum(
        prob for e, prob in enumerated(delta, p, 1 - p) if (np.abs(x @ e.T) > bound * (1 + 1e-12)).any()
    )
    assert failing <= gamma
    one = tails.tail_threshold(delta[1] * x[2], p, gamma / 6, method).threshold
    assert bound[2, 1] == pytest.approx(one, rel=1e-12)


def test_norm_and_operator_thresholds_hold():
    rng = np.random.default_rng(2)
    delta, x, p, gamma = rng.standard_normal((3, 4)), rng.standard_normal(4), 0.7, 0.1
    norm = layers.norm_threshold(delta, x, p, gamma)
    operator = layers.operator_norm_threshold(delta, p, gamma)
    law = list(enumerated(delta, p, 1 - p))
    assert sum(prob for e, prob in law if np.sum((e @ x) ** 2) > norm) <= gamma
    assert sum(prob for e, prob in law if np.linalg.norm(e, 2) >= operator) <= gamma


def test_closed_forms():
    # One output and one input: everything reduces to scalars.
    log4 = math.log(1 / 0.25)
    v = 0.5 * 4.0 / (2 * 0.25)
    assert layers.norm_threshold([[2.0]], [1.0], 0.5, 0.25) == pytest.approx(
        v * (1 + 2 * log4**0.5 + 2 * log4)
    )
    t = layers.operator_norm_threshold([[2.0]], 0.9, 0.05)
    variance, reach = 9 * 4, 2 * 9
    assert 2 * math.exp(-(t**2) / 2 / (variance + reach * t / 3)) == pytest.approx(0.05, rel=1e-10)


def test_the_norm_example_is_of_the_printed_size():
    # m=64, n=256, p=.9, gamma=.01: 44.9 against 148 for the union over outputs, both for ||Ex||, not its square.
    rng = np.random.default_rng(0)
    delta, x = rng.standard_normal((64, 256)) / 16, rng.standard_normal(256) / 4
    norm = layers.norm_threshold(delta, x, 0.9, 0.01)
    union = float(np.sum(layers.output_thresholds(delta, x[None], 0.9, 0.01) ** 2))
    assert math.sqrt(union / norm) == pytest.approx(148 / 44.9, rel=0.01)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5])
def test_refusals(p):
    for call in (
        lambda: layers.output_thresholds([[1.0]], [[1.0]], p, 0.1, rescale=1.0),
        lambda: layers.norm_threshold([[1.0]], [1.0], p, 0.1, rescale=1.0),
        lambda: layers.operator_norm_threshold([[1.0]], p, 0.1, rescale=1.0),
    ):
        with pytest.raises(InputError, match="drop_prob"):
            call()


def test_shape_refusals():
    with pytest.raises(InputError, match="must agree"):
        layers.output_thresholds([[1.0, 2.0]], [[1.0]], 0.5, 0.1)
    with pytest.raises(InputError, match="second_moment has shape"):
        layers.expected_layer_error([[1.0, 2.0]], [1.0], 0.5)
    with pytest.raises(InputError, match="not symmetric"):
        layers.expected_layer_error([[1.0, 2.0]], [[1.0, 2.0], [0.0, 1.0]], 0.5)
