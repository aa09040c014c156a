"""The programs that write docs/results/: what they print comes from the runs, and every link leads to a file."""

import re

import pytest
import result_pages
import write_caac_fl
import write_fedbnp
import write_fedmed

from wardround.analysis import load_runs
from wardround.analysis.measures import measure_all

FROM_FIVE = {"start": 5, "share": 0.25}


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A documentation folder of its own."""
    for module in (result_pages, write_caac_fl, write_fedbnp, write_fedmed):
        for name, folder in (("PAGES", "results"), ("TABLES", "results/tables"), ("FIGURES", "figures")):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / "docs" / folder)
    return tmp_path / "docs"


def links_of(page):
    """Every link of a page to a table or a picture beside it."""
    return re.findall(r"\]\(((?:tables|\.\./figures)/[^)]+)\)", page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_caac_fl_prints_means_over_seeds_and_verdicts_on_both_kinds_of_data(make_run, docs):
    for data in ("icu", "isic2019"):
        for method, auroc in {"fedavg": 0.7, "krum": 0.6, "fltrust": 0.8, "caac": 0.75}.items():
            for seed in (0, 1):
                run = {"name": "caac", "dataset": data, "seed": seed}
                make_run(method, auroc=auroc + 0.02 * seed, **run)
                make_run(method, "sign-flip", auroc=auroc - 0.2, **FROM_FIVE, **run)
    page = result_pages.write_page("caac-fl", write_caac_fl.page(load_runs([make_run.root])))
    text = page.read_text(encoding="utf-8")
    assert (
        "| `icu`, α 0.1 | clean | 2 | 0.710 ± 0.014 | 0.610 ± 0.014 | 0.810 ± 0.014 | 0.760 ± 0.014 |" in text
    )
    assert "**H2 on `isic2019`: " in text
    links = links_of(page)
    assert "../figures/caac-fl.png" in links
    assert "tables/caac-fl-icu-performance.csv" in links
    assert all((page.parent / link).is_file() for link in links)


@pytest.mark.slow
def test_fedmed_says_what_the_liars_weigh_with_and_without_their_lies(make_run, docs):
    def weights(liar):
        return lambda client, number: liar if client == "hospital-0" else (1 - liar) / 3

    for clip in ("none", "percentile", "mad"):
        run = {"name": "fedmed-icu", "dataset": "icu", "aggregator__clip": clip, "aggregator__k_mad": 3.0}
        make_run("fedmed", weights=weights(0.1), **run)
        make_run("fedmed", "score-lie", weights=weights(0.7), attack__collude=False, share=0.25, **run)
    run = {"name": "fedmed-k-mad", "dataset": "icu", "aggregator__clip": "mad", "aggregator__k_mad": 1.0}
    make_run("fedmed", weights=weights(0.1), **run)
    make_run("fedmed", "score-lie", weights=weights(0.4), attack__collude=False, share=0.25, **run)
    measured = measure_all(load_runs([make_run.root]))
    text = write_fedmed.page(measured)
    assert "| 25 % inflate | 10 → 70 % (0.800) | 10 → 70 % (0.800) | 10 → 70 % (0.800) |" in text
    assert "| 25 % inflate | 10 → 40 % (0.800) | 10 → 70 % (0.800) |" in text, "k_mad 1 and 3"
    assert "gain 60.0 points of weight without clipping" in text
    assert (docs / "figures" / "fedmed.png").is_file()


def test_fedbnp_prints_accuracy_precision_and_recall_by_attack(make_run, docs):
    def caught(client, number):
        return client == "hospital-0" or (client == "hospital-1" and number == 20)

    for method, accuracy in {"fedavg": 0.5, "fedbnp-sharp": 0.6}.items():
        run = {"dataset": "alzheimer-mri", "alpha": 0.5, "accuracy": accuracy}
        flags = caught if method == "fedbnp-sharp" else lambda client, number: None
        make_run(method, flags=flags, **run)
        make_run(method, "sign-flip", flags=flags, start=1, share=0.25, **run)
    page = result_pages.write_page("fedbnp", write_fedbnp.page(measure_all(load_runs([make_run.root]))))
    text = page.read_text(encoding="utf-8")
    assert "| Alzheimer MRI | sign-flip | 0.500 | – | – | – | – | 0.600 | – |" in text
    assert "| Alzheimer MRI | sign-flip | – | – | 0.95 / 1.00 | – |" in text
    assert "`fedbnp-sharp` is more accurate than FedAvg in 1 of 1 attacked settings (+10.0 points" in text
    links = links_of(page)
    assert {"../figures/fedbnp.png", "tables/fedbnp-runs.csv"} <= set(links)
    assert all((page.parent / link).is_file() for link in links)
