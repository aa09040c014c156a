"""The docstrings' dialect becomes reStructuredText that means the same."""

from sitegen.docstrings import as_rst, split_docstring


def test_what_is_no_markup_stands_for_itself():
    assert as_rst(["A = |n − μ| and x_ * y", "see `a|b` and :math:`|x|`"]) == [
        r"A = \|n − μ\| and x\_ \* y",
        "see `a|b` and :math:`|x|`",
    ]


def test_formulas_and_sessions_are_left_alone():
    text = [".. math:: |x|*", "    y_*", "", "after|", "", ">>> 2 * 3  # |x|", "6"]
    assert as_rst(text) == [".. math:: |x|*", "    y_*", "", r"after\|", "", ">>> 2 * 3  # |x|", "6"]


def test_a_role_over_two_lines_is_left_alone():
    text = ["and |a| is :math:`\\max(\\|U\\|,", "  0.98\\,B_{t-1})`, the |median|", "after_ it"]
    assert as_rst(text) == [
        r"and \|a\| is :math:`\max(\|U\|,",
        r"  0.98\,B_{t-1})`, the \|median\|",
        r"after\_ it",
    ]


def test_a_list_right_after_a_line_of_text_is_one():
    assert as_rst(["These:", "- one", "  goes on", "- two"]) == ["These:", "", "- one", "  goes on", "- two"]


def test_a_docstring_is_split_before_its_example():
    description, example = split_docstring("Says |x|.\n\n    >>> 1\n    1\n")
    assert (description, example.split()) == (r"Says \|x\|.", [">>>", "1", "1"])
