"""What the hospitals of a federation agree on before round 1: the columns of their tables, and how they are scaled.

The statistics that hospitals send are not trusted: what cannot be read is left out, and the rest is merged robustly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wardround.datasets.agreement import agree_on_columns, agree_on_label
from wardround.datasets.base import Task
from wardround.datasets.preprocessing import Preprocessing, PreprocessingParams, fit_preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.statistics import TableStatistics
from wardround.errors import DataError, WardroundError

__all__ = ["agree", "shape_of"]


def shape_of(preprocessing: Preprocessing) -> dict[str, Any]:
    """What a model's inputs and outputs are for tables that are preprocessed so, as plain values."""
    classes, features = preprocessing.schema.label.classes, preprocessing.feature_names
    return {
        "task": Task.of_label(preprocessing.schema.label).value,
        "class_names": list(classes),
        "input_shape": [len(features)],
        "feature_names": list(features),
        "schema": preprocessing.schema.to_dict(),
        "preprocessing": preprocessing.to_dict(),
    }


def agree(
    tables: Mapping[str, Mapping[str, Any]],
    schema: Schema | None,
    params: PreprocessingParams,
    log_event: Callable[..., None],
) -> Preprocessing:
    """The preprocessing of a federation.

    Args:
        tables: Hospital → what it said of its table: `label`, and `statistics` where its policy allows them.
        schema: What was written down; None: the statistics decide.
        params: The section `preprocessing:`.
        log_event: Told about statistics that cannot be read, and about what was agreed on.
    """
    statistics: dict[str, TableStatistics] = {}
    for client, table in sorted(tables.items()):
        if "statistics" not in table:
            continue
        try:
            statistics[client] = TableStatistics.from_dict(table["statistics"])
        except DataError as error:
            log_event("statistics-ignored", client=client, reason=str(error))
    if not statistics and (schema is None or params.scale == "federation"):
        missing = "preprocessing.scale: federation" if schema is not None else "a federation without a schema"
        raise WardroundError(
            f"no hospital sent statistics of its columns, which {missing} needs; set preprocessing.scale to local or "
            "none and federation.schema, or ask the hospitals for policy.report_statistics"
        )
    if schema is None:
        labels = {client: str(table.get("label"))[:200] for client, table in tables.items()}
        times = {client: _column_name(table.get("time")) for client, table in tables.items()}
        schema = agree_on_columns(statistics, agree_on_label(labels, statistics, times))
    preprocessing = fit_preprocessing(schema, list(statistics.values()), params)
    log_event(
        "preprocessing",
        clients=sorted(statistics),
        schema=schema.hash,
        sha256=preprocessing.hash,
    )
    return preprocessing


def _column_name(said: Any) -> str | None:
    return said[:200] if isinstance(said, str) and said else None
