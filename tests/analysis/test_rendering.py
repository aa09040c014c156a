"""Tables in three notations."""

from wardround.analysis.rendering import Table


def test_notation_is_escaped_where_it_must_be():
    table = Table(
        "k", "50 % of a_b & c", ["name", "ΔAUROC ± sd"], [["a|b_c", 0.12345], ["x", None]], ("note #1",)
    )
    assert "| a\\|b_c | 0.123 |" in table.markdown()
    assert "| :--- | ---: |" in table.markdown()
    assert table.csv() == "name,ΔAUROC ± sd\na|b_c,0.12345\nx,\n"
    latex = table.latex()
    assert r"\caption{50 \% of a\_b \& c. note \#1}" in latex
    assert r"name & $\Delta$AUROC $\pm$ sd \\" in latex
    assert r"a|b\_c & 0.123 \\" in latex
    assert r"\begin{tabular}{lr}" in latex
