"""What the papers add to an analysis, and that an analysis without them names none."""

from wardround import aggregators
from wardround.analysis import analyze, load_runs
from wardround.protocols import papers


def test_every_paper_with_results_of_its_own_is_known():
    assert [paper.name for paper in papers()] == ["anchors", "CAAC-FL", "DOS", "FedBNP", "wardround"]
    rules = {paper.rule for paper in papers() if paper.rule is not None}
    warned = {rule for paper in papers() for rule in paper.cautions}
    assert rules == {"caac", "dos"}
    assert warned == {"caac-guard"}
    assert rules | warned <= set(aggregators.available())


def test_without_papers_there_are_no_sections_and_fedavg_is_the_reference(make_run):
    for method in ("caac", "dos", "fedavg"):
        make_run(method, name="caac")  # as the CAAC-FL presets name their runs
    runs = load_runs([make_run.root])
    plain = analyze(runs)
    assert (plain.reference, plain.sections, plain.verdicts) == ("fedavg", [], [])
    full = analyze(runs, papers=papers())
    assert full.reference == "caac"
    assert [section.title for section in full.sections] == ["The hypotheses about CAAC-FL"]
    assert [table for table in full.tables if table.key.startswith("claims")] == list(
        full.sections[0].details
    )
