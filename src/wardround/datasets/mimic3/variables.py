"""The clinical variables: which items chart them, in which units, and what a living patient can have.

MIMIC-III joins two charting systems, CareVue (item ids below 220,000) and MetaVision (from 220,000 on), which
name the same thing twice; hospitals write one unit in many ways. Here each variable is one thing in one unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["VARIABLES", "Variable", "spelling"]

CHART, LAB, OUTPUT = "CHARTEVENTS", "LABEVENTS", "OUTPUTEVENTS"


@dataclass(frozen=True)
class Variable:
    """One clinical quantity."""

    name: str
    unit: str
    """What its values are in, after conversion."""
    low: float
    high: float
    """Values outside are mistakes of charting and are dropped."""
    items: Mapping[str, Mapping[int, str]]
    """Table → item id → the unit that the item is charted in where the row does not say."""
    conversions: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Other unit, as `spelling` writes it → (factor, offset) to this variable's unit."""
    percent_above: float | None = None
    """Values above this are percentages of a variable that is a fraction."""
    leading_number: bool = False
    """Whether a text such as "4 Spontaneously" counts by the number it begins with."""
    amount: bool = False
    """Whether values of an hour add up (a volume) rather than average (a level)."""

    def known_units(self) -> dict[str, tuple[float, float]]:
        """Every unit that a row may name, as `spelling` writes it → (factor, offset)."""
        own = {spelling(self.unit): (1.0, 0.0)} if self.unit else {}
        return {**own, **self.conversions}

    def factor(self, unit: str) -> tuple[float, float]:
        """(factor, offset) from that unit to the variable's own."""
        return (1.0, 0.0) if unit == self.unit else self.conversions[spelling(unit)]


def spelling(unit: str) -> str:
    """A unit without capitals, blanks, dots and stray signs: what different hands write alike.

    >>> [spelling(unit) for unit in ("Deg. F", "?F", "°F", "mg/dL", "µmol/L")]
    ['degf', 'f', 'f', 'mg/dl', 'umol/l']
    """
    return re.sub(r"[^a-z0-9/%]", "", unit.lower().replace("µ", "u").replace("μ", "u"))


def _chart(*items: int, unit: str = "") -> dict[str, dict[int, str]]:
    return {CHART: dict.fromkeys(items, unit)}


def _lab(*items: int) -> dict[str, dict[int, str]]:
    return {LAB: dict.fromkeys(items, "")}


FAHRENHEIT = (5 / 9, -160 / 9)
PER_KILOPASCAL = {"kpa": (7.50062, 0.0)}


def _grams_per_litre(factor: float = 0.1) -> dict[str, tuple[float, float]]:
    return {"g/l": (factor, 0.0)}


def _molar(millimole: float) -> dict[str, tuple[float, float]]:
    """From mmol/L and µmol/L to mg/dL, by what a mmol/L is in mg/dL."""
    return {"mmol/l": (millimole, 0.0), "umol/l": (millimole / 1000, 0.0)}


VARIABLES: tuple[Variable, ...] = (
    # Vital signs.
    Variable("heart_rate", "bpm", 10, 300, _chart(211, 220045)),
    Variable("systolic_bp", "mmHg", 20, 300, _chart(51, 442, 455, 6701, 220050, 220179, 225309), PER_KILOPASCAL),
    Variable("diastolic_bp", "mmHg", 5, 225, _chart(8368, 8440, 8441, 8555, 220051, 220180, 225310), PER_KILOPASCAL),
    Variable("mean_bp", "mmHg", 10, 250, _chart(52, 443, 456, 6702, 220052, 220181, 225312), PER_KILOPASCAL),
    Variable("respiratory_rate", "/min", 1, 80, _chart(615, 618, 220210, 224690)),
    Variable(
        "temperature", "°C", 25, 45,
        {CHART: {676: "°C", 677: "°C", 223762: "°C", 678: "°F", 679: "°F", 223761: "°F"}},
        {"c": (1.0, 0.0), "degc": (1.0, 0.0), "f": FAHRENHEIT, "degf": FAHRENHEIT},
    ),
    Variable("spo2", "%", 20, 100, _chart(646, 220277)),
    # CareVue charts a fraction (and calls it torr), MetaVision a percentage, and each at times the other's.
    Variable("fio2", "fraction", 0.2, 1.0, _chart(189, 190, 3420, 3422, 223835), percent_above=1.0),
    Variable("gcs_eye", "points", 1, 4, _chart(184, 220739), leading_number=True),
    Variable("gcs_verbal", "points", 1, 5, _chart(723, 223900), leading_number=True),
    Variable("gcs_motor", "points", 1, 6, _chart(454, 223901), leading_number=True),
    # CareVue charts the sum itself; for MetaVision it is added up from the three above.
    Variable("gcs_total", "points", 3, 15, _chart(198), leading_number=True),
    Variable(
        "weight", "kg", 20, 300,
        {CHART: {762: "kg", 763: "kg", 3580: "kg", 3693: "kg", 226512: "kg", 224639: "kg", 226531: "lb"}},
        {"lb": (0.45359237, 0.0), "lbs": (0.45359237, 0.0), "oz": (0.028349523, 0.0)},
    ),
    Variable(
        "height", "cm", 100, 250,
        {CHART: {920: "inches", 1394: "inches", 226707: "inches", 226730: "cm"}},
        {"inches": (2.54, 0.0), "inch": (2.54, 0.0), "in": (2.54, 0.0), "m": (100.0, 0.0)},
    ),
    # Urine. Irrigation (227488 in, 227489 out) stays away: its two halves are charted at different times. So
    # does what the operating room measured before (40061, 40065).
    Variable(
        "urine", "mL", 0, 5000,
        {OUTPUT: dict.fromkeys((
            40055, 40056, 40057, 40069, 40085, 40094, 40096, 40405, 40428, 40473, 40651, 40715, 43175,
            226557, 226558, 226559, 226560, 226561, 226563, 226564, 226565, 226567, 226584,
        ), "")},
        {"l": (1000.0, 0.0)}, amount=True,
    ),
    # Blood.
    Variable(
        "glucose", "mg/dL", 10, 2000,
        {**_chart(807, 811, 1529, 3744, 3745, 220621, 225664, 226537), **_lab(50809, 50931)}, _molar(18.016),
    ),
    Variable("ph", "", 6.5, 8.0, _lab(50820)),
    Variable("pco2", "mmHg", 5, 200, _lab(50818), PER_KILOPASCAL),
    Variable("po2", "mmHg", 10, 800, _lab(50821), PER_KILOPASCAL),
    Variable("base_excess", "mEq/L", -50, 50, _lab(50802)),
    Variable("lactate", "mmol/L", 0.1, 40, _lab(50813), {"mg/dl": (1 / 9.008, 0.0)}),
    Variable("bicarbonate", "mEq/L", 2, 60, _lab(50882)),
    Variable("anion_gap", "mEq/L", -10, 70, _lab(50868)),
    Variable("sodium", "mEq/L", 90, 200, _lab(50824, 50983)),
    Variable("potassium", "mEq/L", 1, 15, _lab(50822, 50971)),
    Variable("chloride", "mEq/L", 50, 175, _lab(50806, 50902)),
    Variable("calcium", "mg/dL", 2, 20, _lab(50893), _molar(4.008)),
    Variable("magnesium", "mg/dL", 0.2, 10, _lab(50960), _molar(2.431)),
    Variable("phosphate", "mg/dL", 0.3, 20, _lab(50970), _molar(3.097)),
    Variable("creatinine", "mg/dL", 0.1, 40, _lab(50912), _molar(11.312)),
    Variable("urea_nitrogen", "mg/dL", 1, 300, _lab(51006), _molar(2.801)),
    Variable("hematocrit", "%", 5, 75, _lab(50810, 51221)),
    Variable("hemoglobin", "g/dL", 1, 25, _lab(50811, 51222), _grams_per_litre()),
    Variable("white_cells", "K/uL", 0, 500, _lab(51300, 51301)),
    Variable("platelets", "K/uL", 1, 2000, _lab(51265)),
    Variable("inr", "", 0.5, 50, _lab(51237)),
    Variable("ptt", "sec", 10, 200, _lab(51275)),
    Variable("bilirubin", "mg/dL", 0.05, 80, _lab(50885), _molar(58.467)),
    Variable("alt", "IU/L", 1, 25000, _lab(50861)),
    Variable("ast", "IU/L", 1, 40000, _lab(50878)),
    Variable("alkaline_phosphatase", "IU/L", 1, 6000, _lab(50863)),
    Variable("albumin", "g/dL", 0.5, 7, _lab(50862), _grams_per_litre()),
    Variable("troponin_t", "ng/mL", 0, 30, _lab(51003)),
)  # fmt: skip
