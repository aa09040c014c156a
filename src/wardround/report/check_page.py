"""A check of a table as one self-contained HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import wardround
from wardround.datasets.table_check_text import class_words, column_words, gap_words
from wardround.datasets.table_findings import TableCheck
from wardround.errors import ConfigError
from wardround.files import replace_file

__all__ = ["check_page", "write_check"]

SENTENCES = {
    "error": "A run cannot use this table as it is.",
    "warning": "A run can use this table; read the warnings first.",
    "note": "A run can use this table.",
}


def write_check(check: TableCheck, path: Path) -> Path:
    """Write the page to `path`, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, check_page(check).encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def check_page(check: TableCheck) -> str:
    """The HTML of the page: whether the table can be used, what stands out, and all columns and hospitals."""
    css = resources.files("wardround.report").joinpath("static/check.css").read_text(encoding="utf-8")
    names = ", ".join(Path(file.path).name for file in check.files)
    worst = next((level for level in ("error", "warning") if check.of(level)), "note")
    sections = "".join(
        (_findings(check), _about(check), _columns(check), _hospitals(check)),
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(names)}: check</title><style>{css}</style></head>
<body><main>
<h1>{html.escape(names)}</h1>
<p class="answer {worst}">{SENTENCES[worst]}</p>
{sections}
<footer>Written by wardround {wardround.__version__}. The page shows frequent values of the table: keep it where the
table may be.</footer>
</main></body></html>
"""


def _findings(check: TableCheck) -> str:
    if not check.findings:
        return "<section><h2>What stands out</h2><p>Nothing.</p></section>"
    items = "".join(
        f'<li class="{finding.level}"><strong>{finding.level}</strong> {_sentence(finding.text)}</li>'
        for finding in check.findings
    )
    return f'<section><h2>What stands out</h2><ul class="findings">{items}</ul></section>'


def _sentence(text: str) -> str:
    """A finding as HTML, with the names of options as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _about(check: TableCheck) -> str:
    facts = [(Path(file.path).name, f"{file.rows:,} rows; {file.words}") for file in check.files]
    if check.class_names:
        facts.append((f"label {check.label}", class_words(check)))
    if check.splits:
        sizes = ", ".join(f"{sum(counts):,} {part}" for part, counts in check.splits.items())
        facts.append((f"split with seed {check.seed}", f"{sizes} rows"))
    facts.append(("repeated rows", f"{check.duplicates:,}"))
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts)
    return f"<section><h2>The table</h2><dl>{items}</dl></section>"


def _columns(check: TableCheck) -> str:
    rows = [
        (
            column.name,
            column.role,
            column_words(column),
            gap_words(column, check.rows) or "none",
            "" if column.auroc is None else f"{column.auroc:.2f}",
        )
        for column in check.columns
    ]
    heads = ("column", "role", "holds", "gaps", "AUROC alone")
    note = (
        "<p>AUROC alone: how well the column by itself ranks the two classes. 0.5 is chance; 1 gives it away.</p>"
        if any(column.auroc is not None for column in check.columns)
        else ""
    )
    return f"<section><h2>{len(rows)} columns</h2>{note}{_table(heads, rows)}</section>"


def _hospitals(check: TableCheck) -> str:
    if not check.hospitals:
        return ""
    heads = ("hospital", "rows", "training", "test", *check.class_names)
    rows = [
        (
            hospital.name,
            *(f"{n:,}" for n in (hospital.rows, hospital.train, hospital.test, *hospital.classes)),
        )
        for hospital in check.hospitals
    ]
    return f"<section><h2>{len(rows)} hospitals</h2>{_table(heads, rows)}</section>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(heads[0], quote=True)}s">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
