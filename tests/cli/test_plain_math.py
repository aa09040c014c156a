"""Formulas as plain text: no member's explanation shows LaTeX."""

import inspect
import re

import pytest

from wardround.cli.listing import registries
from wardround.cli.plain_math import plain_docstring, plain_formula

MEMBERS = [(kind, name) for kind, registry in registries().items() for name in registry.available()]


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_no_member_shows_latex(kind, name):
    text = plain_docstring(inspect.getdoc(registries()[kind].get(name)) or "")
    prose = re.sub(r"`[^`]*`", "", text)
    assert "\\" not in prose
    assert ":math:" not in text
    assert ".. math::" not in text
    assert ">>>" not in text
    assert not re.search(r"\b(frac|mathrm|mathcal|sqrt|begin|quad|tilde|leftarrow|textstyle)\b", prose)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"\Delta = \frac{1}{N} \sum_i U_i", "Δ = (1/N) Σᵢ Uᵢ"),
        (r"z \leftarrow \frac{\sum_i \beta_i U_i}{\sum_i \beta_i}", "z ← (Σᵢ βᵢ Uᵢ) / (Σᵢ βᵢ)"),
        (r"e^{-\beta_w A_i}", "e^(-β_w Aᵢ)"),
        (r"\sqrt{\tfrac12 A_{mag}^2}", "√((1/2) A_mag²)"),
        (r"\tilde g = \bar U + \gamma\,p", "g̃ = Ū + γ p"),
        (r"|\mathcal N_i| = N-f-2, \quad i \notin \mathcal N_i", "|Nᵢ| = N-f-2,    i ∉ Nᵢ"),
        (r"\lambda_{dir}\max(0, \rho-c)^2", "λ_dir max(0, ρ-c)²"),
        (r"10^{-6}", "10⁻⁶"),
        (r"\begin{aligned} a &= b \\ c &\le d \end{aligned}", "a = b\nc ≤ d"),
        (r"\Phi^{-1}\Big(\frac{N-f}{N}\Big)", "Φ⁻¹((N-f) / N)"),
    ],
)
def test_formulas_by_hand(formula, text):
    assert plain_formula(formula) == text


def test_a_docstring_keeps_its_words_and_loses_its_example():
    docstring = inspect.cleandoc(
        """Mean of :math:`U_i`, see :func:`~wardround.updates.select`.

        .. math:: \\Delta = \\frac{a}{b},
            \\quad c

        Where `b` is ``c``.

        >>> 1 + 1
        2
        """
    )
    expected = "Mean of Uᵢ, see wardround.updates.select.\n\n    Δ = a/b,    c\n\nWhere `b` is `c`."
    assert plain_docstring(docstring) == expected
