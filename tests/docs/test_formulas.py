"""Formulas become MathML: rows aligned, letters that browsers have, and a complaint about what is not known."""

import logging

from sitegen.extension import mathml


def test_an_aligned_formula_is_a_table():
    table = mathml(r"a &= \frac{b}{c} \\ d &= e", "block")
    assert table.count("<mtr>") == 2
    assert table.count("text-align: right") == table.count("text-align: left") == 2
    assert "&" not in table.replace("&#x", "")


def test_brackets_grow_and_letters_are_script():
    formula = mathml(r"\mathcal N\Big(\frac12\Big) \in \mathbb R", "inline")
    assert "<mi>𝒩</mi>" in formula
    assert "<mi>ℝ</mi>" in formula
    assert formula.count('stretchy="true"') == 2


def test_what_is_not_known_is_a_warning(caplog):
    logging.getLogger("sphinx.sitegen.extension").addHandler(caplog.handler)
    try:
        mathml(r"\frobnicate x", "inline")
    finally:
        logging.getLogger("sphinx.sitegen.extension").removeHandler(caplog.handler)
    assert "frobnicate" in caplog.text
