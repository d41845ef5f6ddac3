"""Certificates of a whole layer: E = dW - pruned dW, independent masks per entry, outputs E x.

Specification 1.g.  ``delta`` is dW [m, n] (outputs by inputs) throughout.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from assay.core.errors import InputError
from assay.missions.dare import _checks
from assay.missions.dare.algorithm import chernoff
from assay.missions.dare.model import BernoulliSum, Floats, phi


class LayerError(NamedTuple):
    """E||Ex||^2 in its two parts."""

    bias: float
    variance: float
    mean_square: float


def expected_layer_error(
    delta: ArrayLike, second_moment: ArrayLike, drop_prob: float, *, rescale: float | None = None
) -> LayerError:
    """E||Ex||^2 = (1-(1-p)/q)^2 tr(dW M dW^T) + p(1-p)/q^2 sum_j M_jj ||dW_j||^2.

    Args:
        delta: dW [m, n].
        second_moment: M = E x x^T [n, n]; its diagonal [n] is enough for DARE, where the bias is 0.
        drop_prob: p in [0, 1].
        rescale: q; ``None`` is 1 - p.

    >>> expected_layer_error([[1.0, 2.0]], [1.0, 1.0], 0.5)
    LayerError(bias=0.0, variance=5.0, mean_square=5.0)
    """
    weights = _checks.array(delta, "delta", 2)
    moment = _checks.second_moment(second_moment, weights.shape[1])
    p, q = _parameters(drop_prob, rescale, zero_and_one=True)
    shrink = 1.0 - (1.0 - p) / q
    diagonal = moment if moment.ndim == 1 else moment.diagonal()
    variance = p * (1.0 - p) / q**2 * float((weights**2 @ diagonal).sum())
    bias = 0.0
    if shrink != 0.0:
        full = _checks.full_second_moment(moment, weights.shape[1])
        bias = shrink**2 * float(np.sum((weights @ full) * weights))
    return LayerError(bias, variance, bias + variance)


def output_thresholds(
    delta: ArrayLike,
    inputs: ArrayLike,
    drop_prob: float,
    gamma: float,
    method: Literal["ks", "chernoff-split"] = "ks",
    *,
    rescale: float | None = None,
) -> Floats:
    """Thresholds T [N, m] that hold for all samples and outputs at once with probability 1 - gamma.

    P(some |E x_s|_i centred > T_si) <= gamma, each of the mN outputs taking gamma/(mN) (union bound).

    Args:
        delta: dW [m, n].
        inputs: x [N, n].
        drop_prob: p in (0, 1).
        gamma: failure probability in (0, 1).
        method: ``ks`` costs one matrix product; ``chernoff-split`` about 20 passes over m N n.
        rescale: q; ``None`` is 1 - p.
    """
    _checks.choice(method, "method", get_args(Literal["ks", "chernoff-split"]))
    weights, x = _weights_and_inputs(delta, inputs)
    p, q = _parameters(drop_prob, rescale)
    share = _checks.failure_prob(gamma) / max(1, weights.shape[0] * x.shape[0])
    if method == "ks":
        return np.sqrt((x**2 @ (weights**2).T) * phi(p) * math.log(2.0 / share)) / q
    thresholds = np.empty((x.shape[0], weights.shape[0]))
    for s, sample in enumerate(x):
        for i, row in enumerate(weights):
            c = row * sample
            c = c[c != 0.0]
            prob, complement = np.where(c > 0.0, p, 1.0 - p), np.where(c > 0.0, 1.0 - p, p)
            thresholds[s, i] = chernoff.split_threshold(BernoulliSum(np.abs(c) / q, prob, complement), share)
    return thresholds


def norm_threshold(
    delta: ArrayLike, sample: ArrayLike, drop_prob: float, gamma: float, *, rescale: float | None = None
) -> float:
    """T with P(||Ex - E Ex||^2 > T) <= gamma at one input x (Hsu, Kakade and Zhang 2012).

    T = sum v_i + 2 sqrt(L sum v_i^2) + 2 L max v_i with L = ln(1/gamma) and the Kearns-Saul proxies
    v_i = Phi Q_i/(2 q^2) of the independent outputs.

    Args:
        delta: dW [m, n].
        sample: x [n].
        drop_prob: p in (0, 1).
        gamma: failure probability in (0, 1).
        rescale: q; ``None`` is 1 - p.
    """
    weights, x = _weights_and_inputs(delta, np.atleast_2d(_checks.array(sample, "sample", 1)))
    p, q = _parameters(drop_prob, rescale)
    log_inverse = math.log(1.0 / _checks.failure_prob(gamma))
    proxies = phi(p) * (weights**2 @ x[0] ** 2) / (2.0 * q**2)
    spread = 2.0 * math.sqrt(log_inverse * float(proxies @ proxies))
    return float(proxies.sum()) + spread + 2.0 * log_inverse * float(proxies.max(initial=0.0))


def operator_norm_threshold(
    delta: ArrayLike, drop_prob: float, gamma: float, *, rescale: float | None = None
) -> float:
    """T with P(||E - E E||_op >= T) <= gamma, so for every input at once (matrix Bernstein, Tropp 2012).

    P(||E||_op >= t) <= (m+n) exp(-t^2/2/(V + R t/3)), V = p(1-p)/q^2 times the largest squared row or
    column norm, R = max|dW| max(p, 1-p)/q.  Rigorous and loose.

    Args:
        delta: dW [m, n].
        drop_prob: p in (0, 1).
        gamma: failure probability in (0, 1).
        rescale: q; ``None`` is 1 - p.
    """
    weights = _checks.array(delta, "delta", 2)
    p, q = _parameters(drop_prob, rescale)
    square = weights**2
    largest = max(square.sum(axis=0).max(initial=0.0), square.sum(axis=1).max(initial=0.0))
    variance = p * (1.0 - p) / q**2 * float(largest)
    reach = math.sqrt(float(square.max(initial=0.0))) * max(p, 1.0 - p) / q
    log_term = math.log(sum(weights.shape) / _checks.failure_prob(gamma))
    linear = reach * log_term / 3.0
    return linear + math.sqrt(linear**2 + 2.0 * variance * log_term)


def _weights_and_inputs(delta: ArrayLike, inputs: ArrayLike) -> tuple[Floats, Floats]:
    weights, x = _checks.array(delta, "delta", 2), _checks.array(inputs, "inputs", 2)
    if weights.shape[1] != x.shape[1]:
        raise InputError(
            f"delta has {weights.shape[1]} columns and the input {x.shape[1]} entries; they must agree"
        )
    return weights, x


def _parameters(drop_prob: Any, rescale: Any, *, zero_and_one: bool = False) -> tuple[float, float]:
    p = float(_checks.probability(drop_prob, "drop_prob"))
    if not zero_and_one and p in (0.0, 1.0):
        raise InputError(f"drop_prob is {drop_prob}; this bound holds strictly between 0 and 1")
    return p, float(_checks.rescale_or_keep(rescale, p))
