"""Statements in the terminal: readable, and nothing lost."""

from __future__ import annotations

import pytest

from assay.cli.maths import to_unicode
from assay.core.catalog import catalog


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"x_1^2 + y^{n+1}", "x₁² + yⁿ⁺¹"),
        (r"e^{t^2\Phi(p)/4}", "e^{t²Φ(p)/4}"),
        (r"\frac12 \le \frac{a+b}{c}", "(1/2) ≤ ((a+b)/c)"),
        (r"\sqrt{Q\ln(2/\gamma)}", "√(Q ln(2/γ))"),
        (r"\Pr\Bigl(|H| > T\Bigr) \le \gamma", "Pr(|H| > T) ≤ γ"),
        (r"\left\| A x \right\|_2", "‖ A x ‖₂"),
        (r"\hat x + \widehat{xy}", "x̂ + widehat(xy)"),
        (r"\operatorname*{arg\,min}_{x} f", "arg minₓ f"),
        (r"\text{for drop-outs}", "for drop-outs"),
        (r"a \\ b", "a\nb"),
        (r"\unknownmacro x", r"\unknownmacro x"),
        (r"f(\frac{a+b}{2})", "f((a+b)/2)"),
        (r"\frac{a b}{c d}", "(a b/(c d))"),
        (r"\frac{\frac12 a + b}{q^2}", "(((1/2) a + b)/q²)"),
        (r"e^\top M", "eᵀM"),
        (r"s_{\max}", "sₘₐₓ"),
        (r"(0, 1] (a)", "(0, 1] (a)"),
        (r"x_", "x_{}"),
        ("", ""),
    ],
)
def test_latex_as_unicode(latex, text):
    assert to_unicode(latex) == text


def test_every_statement_of_the_catalogue_is_read_whole():
    for claim in catalog().values():
        text = to_unicode(claim.statement)
        assert "\\" not in text, (claim.id, text)
        assert sum(map(text.count, "([")) == sum(map(text.count, ")]")), (claim.id, text)
