"""What a report opens with: which rule to use, and the evidence for it in one picture and one table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace

from wardround.analysis.evidence import evidence_table
from wardround.analysis.recommendation import Recommendation
from wardround.analysis.runs import CLEAN, Run
from wardround.report.evidence_figure import evidence_figure
from wardround.report.figures import Figure
from wardround.report.html_figures import plot
from wardround.report.html_tables import table
from wardround.report.selection import BROAD, spread

__all__ = ["Opening", "opening_of", "opening_section", "what_is_common"]

OPEN_AT_ONCE = 2  # settings whose evidence is not folded
ANSWERS_SHOWN = 40  # of so many settings at most
MEANINGS = {
    "AUROC": "of all pairs of a patient with the outcome and one without, the share that the model ranks right.",
    "C-index": "of all pairs of patients of whom it is known who had the event first, the share that the model ranks "
    "right.",
}
MEANING = (
    "1 is perfect, 0.5 is a coin toss. The answer holds for these data, attacks and training; an attack that was not "
    "run may do more harm."
)


class Opening:
    """The recommendations of a report, each with its figure, and the names that the page uses."""

    def __init__(self, runs: Sequence[Run], recommendations: Sequence[Recommendation]) -> None:
        self.attacks = {run.attack: run.attack_label for run in runs}
        self.settings = {run.setting: run.setting_label for run in runs}
        self.recommendations = list(recommendations)
        self.with_evidence = spread(self.recommendations, BROAD.settings)
        self.figures: list[Figure | None] = [
            evidence_figure(f"evidence-{number}", recommendation, self.attacks)
            for number, recommendation in enumerate(self.with_evidence)
        ]


def opening_of(runs: Sequence[Run], recommendations: Sequence[Recommendation]) -> Opening:
    """Prepare the opening of a report on these runs."""
    return Opening(runs, recommendations)


def opening_section(opening: Opening, notes: Sequence[str] = ()) -> str:
    """The answer, then the evidence; answers for several settings come before the evidence for any.

    Args:
        opening: Recommendations and their figures.
        notes: What must be known before the figures are believed; stands between answer and evidence.
    """
    if not opening.recommendations:
        return ""
    several = len(opening.recommendations) > 1
    shown = spread(opening.recommendations, ANSWERS_SHOWN)
    answers = "".join(
        _answer(recommendation, opening.settings.get(recommendation.setting, "") if several else "")
        for recommendation in shown
    )
    if len(shown) < len(opening.recommendations):
        answers += (
            f'<p class="note">Answers for {len(shown)} of {len(opening.recommendations)} settings; '
            "`wardround analyze RUNS` prints all.</p>"
        )
    evidence = "".join(
        _evidence(recommendation, figure, opening, several)
        for recommendation, figure in zip(opening.with_evidence, opening.figures, strict=True)
    )
    warned = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)
    measures = dict.fromkeys(recommendation.measure for recommendation in opening.recommendations)
    meaning = " ".join([*(f"{name}: {MEANINGS[name]}" for name in measures), MEANING])
    return f'{answers}<p class="meaning">{meaning}</p>{warned}{evidence}'


def what_is_common(runs: Sequence[Run]) -> str:
    """What all runs have in common, in the order of the labels; empty where there is nothing."""
    if not runs:
        return ""
    first = next((run for run in runs if run.attack != CLEAN), runs[0])
    parts = [part for part in first.setting_parts if part in first.common]
    attack = [part for part in first.attack_parts[1:] if part in first.common]
    if attack:
        parts.append(f"attacks by {' '.join(attack)}" if "%" in attack[0] else f"attacks {' '.join(attack)}")
    return " · ".join(parts)


def _answer(recommendation: Recommendation, setting: str) -> str:
    where = f"<p>{html.escape(setting)}</p>" if setting else ""
    details = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in recommendation.details)
    return (
        f'<section class="answer {recommendation.verdict.replace(" ", "-")}">{where}'
        f"<h2>{html.escape(recommendation.headline)}</h2>{f'<ul>{details}</ul>' if details else ''}</section>"
    )


def _evidence(recommendation: Recommendation, figure: Figure | None, opening: Opening, several: bool) -> str:
    content = evidence_table(recommendation)
    if figure is None or content is None:
        return ""
    short = replace(content, columns=[opening.attacks.get(name, name) for name in content.columns])
    setting = opening.settings.get(recommendation.setting, "")
    title = f"The evidence{f': {setting}' if several and setting else ''}"
    body = f"{plot(figure)}{table(short)}"
    if len(opening.recommendations) > OPEN_AT_ONCE:
        return f"<details><summary>{html.escape(title)}</summary>{body}</details>"
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"
