"""One self-contained HTML page about some runs: no network, no server, readable in ten years."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import wardround
from wardround.analysis.runs import Run
from wardround.analysis.tables import Comparison, compare
from wardround.report.figures import Figure, anomaly_over_time, auroc_over_rounds, who_holds_what

__all__ = ["write_page"]

HEADINGS = (
    ("method", True, "the aggregation rule"),
    ("attack", True, "what the Byzantine clients do"),
    ("seeds", False, "finished runs behind this line"),
    ("AUROC", False, "test AUROC after the last round, mean over seeds"),
    ("± sd", False, "standard deviation over seeds"),
    ("ΔAUROC", False, "what the attack cost: clean minus attacked, same seeds"),
    ("found", False, "attacking client-rounds flagged (or weighted below a tenth of an equal share)"),
    ("false alarms", False, "honest client-rounds flagged or suppressed likewise"),
)


def write_page(runs: Sequence[Run], path: Path, title: str) -> Path:
    """Write the report on these runs to `path`, whole or not at all."""
    figures = [*auroc_over_rounds(runs), *anomaly_over_time(runs), *who_holds_what(runs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(_page(title, runs, figures), encoding="utf-8")
    os.replace(temporary, path)
    return path


def _page(title: str, runs: Sequence[Run], figures: Sequence[Figure]) -> str:
    from plotly.offline import get_plotlyjs

    def static(name: str) -> str:
        return resources.files("wardround.report").joinpath(f"static/{name}").read_text(encoding="utf-8")

    data = json.dumps([{"key": f.key, "data": f.data, "layout": f.layout} for f in figures])
    data = data.replace("</", "<\\/")  # nothing in a name may end the script
    sections = "\n".join(
        f'<section><h2>{html.escape(f.title)}</h2><figure><div class="plot" id="{f.key}" role="img" '
        f'aria-label="{html.escape(f.title)}"></div><figcaption>{html.escape(f.caption)}</figcaption>'
        "</figure></section>"
        for f in figures
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{static("page.css")}</style></head>
<body><main>
<h1>{html.escape(title)}</h1>
<p>{_count(len(runs), "run")}. An AUROC of 1 ranks all patients right by risk, 0.5 is chance.
Press a heading to sort.</p>
{_table(compare(runs))}
{sections}
<footer>Written by wardround {wardround.__version__} from {_count(len(runs), "run folder")}.</footer>
</main>
<script>{get_plotlyjs()}</script>
<script type="application/json" id="figures">{data}</script>
<script>{static("page.js")}</script>
</body></html>
"""


def _table(lines: Sequence[Comparison]) -> str:
    settings = {line.setting for line in lines}
    if len(settings) > 1:
        tables = [
            (setting, [line for line in lines if line.setting == setting]) for setting in sorted(settings)
        ]
        return "".join(f"<h2>{html.escape(setting)}</h2>{_table(part)}" for setting, part in tables)
    head = "".join(
        f'<th{" class=word" if word else ""} title="{hint}"><button type="button">{name}</button></th>'
        for name, word, hint in HEADINGS
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="word">{html.escape(text)}</td>' for text in (line.method, line.attack))
        + f"<td>{line.seeds}{f' (+{line.unfinished} unfinished)' if line.unfinished else ''}</td>"
        + "".join(map(_cell, (line.auroc, line.auroc_sd, line.loss_of_auroc)))
        + "".join(map(_percent, (line.tpr, line.fpr)))
        + "</tr>"
        for line in lines
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: float | None) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{value:.3f}</td>'


def _percent(value: float | None) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{100 * value:.1f} %</td>'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
