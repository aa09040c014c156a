"""Which rule to use here, what it costs without an attack, what it saves under one, and how sure that is.

The recommendation is computed from the runs of one setting. A rule's *worst case* in a seed is its lowest AUROC over
all conditions: without attack, and under each attack. The rule with the highest worst case, mean over seeds, leads.
It is recommended unless

- it cannot be told apart from plain averaging (the reference), or plain averaging itself leads;
- its worst case keeps less than half of what the best rule has above chance without an attack;
- the runs hold no attack, or no second rule to compare it with.

Two rules are told apart when every seed says the same and the paired t-test is significant after Holm's correction
over all rules. Only rules that ran under the same conditions with the same seeds are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from wardround.analysis.measures import BASELINE, Measured
from wardround.analysis.rendering import Cell, Table, count, difference, plus_minus
from wardround.analysis.runs import CHANCE, CLEAN
from wardround.analysis.statistics import LEVEL, Paired, adjusted, describe, paired, smallest_wilcoxon_p

__all__ = ["Recommendation", "Standing", "evidence_table", "recommend", "recommendations"]

KEPT = 0.5  # of what the best rule has above chance without attack: with less, no rule is worth recommending
COLUMNS_PER_ATTACK = 3  # with more attacks, the table shows their mean and the worst

Results = Mapping[str, Mapping[tuple[str, int], float]]
"""AUROC by method, and by attack and seed."""

RECOMMENDED, TIED, HINT, NOT_NEEDED, UNDECIDED, NONE = (
    "recommended", "tied", "one seed", "not needed", "undecided", "none",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """What one rule reached: AUROC by condition (clean, and each attack), one value per compared seed."""

    method: str
    values: Mapping[str, tuple[float, ...]]

    @property
    def worst(self) -> tuple[float, ...]:
        """The lowest AUROC of any condition, per seed."""
        return tuple(min(of_seed) for of_seed in zip(*self.values.values(), strict=True))

    @property
    def worst_attack(self) -> str | None:
        """The attack with the lowest mean AUROC."""
        attacked = {attack: fmean(values) for attack, values in self.values.items() if attack != CLEAN}
        return min(attacked, key=lambda attack: (attacked[attack], attack)) if attacked else None

    def mean(self, condition: str) -> float:
        """Mean AUROC over seeds under one condition."""
        return fmean(self.values[condition])


@dataclass(frozen=True)
class Recommendation:
    """What the runs of one setting say about which rule to use."""

    setting: str
    verdict: str
    """recommended, tied, one seed, not needed (plain averaging does as well), undecided, or none."""
    rule: str | None
    """The rule to use; None where these runs support none."""
    headline: str
    """The answer in one sentence."""
    details: tuple[str, ...]
    """What it costs, what it saves, and how sure that is, a sentence or two each."""
    reference: str | None
    """The rule that cost and saving are measured against."""
    cost: Paired | None
    """Without attack: the reference's AUROC minus the rule's, by seed."""
    saving: Paired | None
    """Under the attack that hurts the reference most: the rule's AUROC minus the reference's, by seed."""
    tied_with: tuple[str, ...]
    """Rules that these seeds cannot tell from the leading one."""
    seeds: tuple[int, ...]
    standings: tuple[Standing, ...]
    """The compared rules, best worst case first."""
    left_out: tuple[str, ...] = ()
    """Rules that did not run under all of these conditions."""

    @property
    def text(self) -> str:
        """Headline and details as one paragraph."""
        return " ".join([self.headline, *self.details])


def recommendations(measured: Iterable[Measured]) -> list[Recommendation]:
    """One recommendation per setting, in the order of their names."""
    settings: dict[str, dict[str, dict[tuple[str, int], float]]] = defaultdict(lambda: defaultdict(dict))
    backdoors: set[str] = set()
    for m in measured:
        if (value := m["auroc"]) is not None:
            settings[m.run.setting][m.run.method][m.run.attack, m.run.seed] = value
        if m["attack_success"] is not None:
            backdoors.add(m.run.setting)
    return [recommend(settings[setting], setting, setting in backdoors) for setting in sorted(settings)]


def recommend(results: Results, setting: str = "", backdoor: bool = False) -> Recommendation:
    """Decide which rule the results of one setting support.

    Args:
        results: AUROC by method, and by attack (`clean` without) and seed.
        setting: Its name, for the heading.
        backdoor: Whether an attack aims at triggered samples, which AUROC does not show.
    """
    conditions, seeds, methods = _comparable(results)
    standings = _standings(results, conditions, seeds, methods)
    left_out = tuple(sorted(set(results) - set(methods)))
    attacks = [condition for condition in conditions if condition != CLEAN]
    reference = BASELINE if BASELINE in methods else None
    facts = _Facts(setting, standings, attacks, seeds, reference, left_out, backdoor)
    if not seeds or len(methods) < 2:
        return facts.nothing_to_compare()
    if not attacks:
        return facts.nobody_attacks()
    return facts.decide()


def evidence_table(recommendation: Recommendation) -> Table | None:
    """What each compared rule reached, best worst case first; None where nothing was compared."""
    standings = recommendation.standings
    if not standings:
        return None
    clean = CLEAN in standings[0].values
    attacks = [condition for condition in standings[0].values if condition != CLEAN]
    few = len(attacks) <= COLUMNS_PER_ATTACK
    columns = [
        "rule",
        *(["without attack"] if clean else []),
        *(attacks if few else [f"mean of {len(attacks)} attacks"]),
    ]
    if attacks:
        columns += ["worst case"] if few else ["worst case", "worst attack"]
    rows: list[list[Cell]] = []
    for standing in standings:
        shown = [standing.values[condition] for condition in ([CLEAN] if clean else [])]
        shown += [standing.values[attack] for attack in attacks] if few else [
            tuple(fmean(of_seed) for of_seed in zip(*(standing.values[a] for a in attacks), strict=True))
        ]  # fmt: skip
        shown += [standing.worst] if attacks else []
        row: list[Cell] = [standing.method, *(_mean_sd(values) for values in shown)]
        rows.append(row if few else [*row, standing.worst_attack])
    notes = [
        f"AUROC on the test patients after the last round, mean{' ± standard deviation' * (len(recommendation.seeds) > 1)}"
        f" over {count(len(recommendation.seeds), 'seed')}."
        + (" Worst case: the lowest of its row in each seed." if attacks else "")
    ]
    if recommendation.left_out:
        notes.append(
            f"Not compared, because they did not run under all of this: {', '.join(recommendation.left_out)}."
        )
    return Table("evidence", "What each rule keeps", columns, rows, tuple(notes))


def _comparable(results: Results) -> tuple[list[str], list[int], list[str]]:
    """The conditions, seeds and methods that can be compared: every method under every condition with every seed.

    Conditions that fewest methods have are given up, one by one, until two methods have all that are left. Methods
    with fewer than half of the seeds of another one are left out, so that one unfinished rule does not hide the rest.
    """
    seeds_of: dict[str, dict[str, set[int]]] = {
        method: _by_condition(blocks) for method, blocks in results.items() if blocks
    }
    conditions = sorted(
        {c for by_condition in seeds_of.values() for c in by_condition}, key=lambda c: (c != CLEAN, c)
    )

    def whole(method: str) -> set[int]:
        return (
            set.intersection(*(seeds_of[method].get(c, set()) for c in conditions)) if conditions else set()
        )

    def holders(condition: str) -> int:
        return sum(condition in by_condition for by_condition in seeds_of.values())

    while len(conditions) > 1 and sum(bool(whole(method)) for method in seeds_of) < min(2, len(seeds_of)):
        # The clean runs go last: without them nobody knows what a rule costs.
        conditions.remove(min(conditions, key=lambda c: (c == CLEAN, holders(c), c)))
    most = max((len(whole(method)) for method in seeds_of), default=0)
    methods = sorted(method for method in seeds_of if whole(method) and 2 * len(whole(method)) >= most)
    seeds = sorted(set.intersection(*(whole(method) for method in methods))) if methods else []
    return conditions, seeds, methods


def _by_condition(blocks: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    seeds: dict[str, set[int]] = defaultdict(set)
    for attack, seed in blocks:
        seeds[attack].add(seed)
    return seeds


def _standings(
    results: Results, conditions: Sequence[str], seeds: Sequence[int], methods: Sequence[str]
) -> tuple[Standing, ...]:
    if not seeds:
        return ()
    standings = [
        Standing(method, {c: tuple(results[method][c, seed] for seed in seeds) for c in conditions})
        for method in methods
    ]
    # Of equals the simplest leads: plain averaging first, then by name.
    return tuple(sorted(standings, key=lambda s: (-fmean(s.worst), s.method != BASELINE, s.method)))


def _mean_sd(values: Sequence[float]) -> str | None:
    description = describe(values)
    return None if description is None else plus_minus(description.mean, description.sd)


@dataclass(frozen=True)
class _Facts:
    """What was compared, and the sentences about it."""

    setting: str
    standings: tuple[Standing, ...]
    attacks: Sequence[str]
    seeds: Sequence[int]
    reference: str | None
    left_out: tuple[str, ...]
    backdoor: bool

    def nothing_to_compare(self) -> Recommendation:
        if self.standings:
            (only,) = self.standings[:1]
            headline = f"No rule can be recommended: only {only.method} was run, and there is nothing to compare it with."
            reached = [f"AUROC {only.mean(CLEAN):.3f} without an attack"] if CLEAN in only.values else []
            if only.worst_attack is not None:
                reached.append(f"{only.mean(only.worst_attack):.3f} under {only.worst_attack}")
            return self._made(NONE, None, headline, [f"It reached {', '.join(reached)}."])
        return self._made(
            NONE,
            None,
            "No rule can be recommended: no two rules ran under the same attacks with the same seeds.",
            [],
        )

    def nobody_attacks(self) -> Recommendation:
        best, second = self.standings[:2]
        test = paired(best.worst, second.worst)
        assert test is not None  # there are seeds
        return self._made(
            NONE,
            None,
            "No rule can be recommended: nobody attacks in these runs, so they cannot say what withstands an attack.",
            [f"Without an attack {best.method} has the highest AUROC, {best.mean(CLEAN):.3f}; next is {second.method} with "
             f"{second.mean(CLEAN):.3f}{'' if self._apart([test])[0] else ', which these seeds do not tell apart'}."],
        )  # fmt: skip

    def decide(self) -> Recommendation:
        best, *others = self.standings
        tests = [test for other in others if (test := paired(best.worst, other.worst)) is not None]
        tied = tuple(o.method for o, apart in zip(others, self._apart(tests), strict=True) if not apart)
        worst = fmean(best.worst)
        few = "this one seed" if len(self.seeds) == 1 else f"these {len(self.seeds)} seeds"
        # A difference that is below the last shown digit in no seed and every seed is a tie by any measure.
        if self._too_low(worst):
            headline = (
                f"No rule can be recommended: in its worst case even the best one here, {best.method}, keeps an AUROC of "
                f"only {worst:.3f} (0.5 is chance)."
            )
            return self._made(NONE, None, headline, self._details(best, tied), best, tied)
        if best.method == self.reference:
            headline = (
                f"{_plain(best.method).capitalize()} is enough against these attacks: no other rule here has a better "
                "worst case."
            )
            return self._made(NOT_NEEDED, best.method, headline, self._details(best, tied), best, tied)
        if len(self.seeds) == 1:
            headline = f"Use {best.method}, as far as a single seed can tell."
            return self._made(HINT, best.method, headline, self._details(best, tied), best, tied)
        if self.reference in tied:
            headline = (
                f"Not decided: {best.method} has the best worst case ({worst:.3f}), but {few} do not tell it from "
                f"{_plain(self.reference or '')}."
            )
            return self._made(UNDECIDED, None, headline, self._details(best, tied), best, tied)
        if tied:
            headline = (
                f"Use {best.method} here. {_listed(tied)} may be as good: {few} do not tell them apart."
            )
            return self._made(TIED, best.method, headline, self._details(best, ()), best, tied)
        return self._made(RECOMMENDED, best.method, f"Use {best.method} here.", self._details(best, ()), best)

    def _too_low(self, worst: float) -> bool:
        clean = [standing.mean(CLEAN) for standing in self.standings if CLEAN in standing.values]
        above = max(clean) - CHANCE if clean else 0.0
        return worst - CHANCE < KEPT * max(above, 0.0) or worst <= CHANCE

    def _apart(self, tests: Sequence[Paired]) -> list[bool]:
        """Which differences every seed agrees on, and the paired t-test too, after Holm's correction."""
        # Differences that are the same in all seeds have no variance to test against: nothing is surer.
        p_values = [1.0 if t.n < 2 or not t.difference else 0.0 if t.t_p is None else t.t_p for t in tests]
        return [
            max(test.above, test.below) == test.n and p <= LEVEL
            for test, p in zip(tests, adjusted(p_values), strict=True)
        ]

    def _details(self, best: Standing, tied: tuple[str, ...]) -> list[str]:
        sentences = [*self._cost_in_words(best), *self._saving_in_words(best), self._certainty(best)]
        if tied and best.method == self.reference:
            sentences.insert(2, f"Not told apart from it: {_listed(tied)}.")
        if self.backdoor:
            sentences.append("AUROC does not show whether a backdoor works: see 'attack success' below.")
        return sentences

    def _cost_in_words(self, best: Standing) -> list[str]:
        if CLEAN not in best.values:
            return ["What it costs without an attack is not known: no run is without one."]
        other = self._other(best)
        if other is None:
            return []
        test = self._cost(best, other)
        assert test is not None
        figures = f"AUROC {best.mean(CLEAN):.3f} against {other.mean(CLEAN):.3f} of {_plain(other.method)}"
        if best.method == self.reference:
            return [f"Without an attack: {figures}{_interval(test, 'difference ')}."]
        if test.difference <= 0:
            return [f"Without an attack it costs nothing: {figures}{_interval(test, 'difference ')}."]
        measured = " measurable" if test.low is not None and test.low <= 0 else ""
        cost = f"nothing{measured}" if measured else f"{difference(test.difference)} of AUROC"
        return [
            f"Without an attack it costs {cost}: {figures}{_interval(test, f'{difference(test.difference)}, ')}."
        ]

    def _saving_in_words(self, best: Standing) -> list[str]:
        other = self._other(best)
        if other is None or other.worst_attack is None or best.worst_attack is None:
            return []
        test = self._saving(best, other)
        assert test is not None
        attack = other.worst_attack
        which = f"Under {attack}" + (
            f", the worst of {len(self.attacks)} attacks for {_plain(other.method)},"
            if len(self.attacks) > 1
            else ""
        )
        ours, theirs = best.mean(attack), other.mean(attack)
        sentences = [
            f"{which} it has {ours:.3f} where {_plain(other.method)} has {theirs:.3f}: "
            + (f"it saves {difference(test.difference)}" if test.difference > 0 else f"it loses {difference(-test.difference)} more")
            + f"{_interval(test)}."
        ]  # fmt: skip
        if best.worst_attack != attack:
            sentences.append(
                f"Its own worst attack is {best.worst_attack}: {best.mean(best.worst_attack):.3f}."
            )
        return sentences

    def _certainty(self, best: Standing) -> str:
        seeds = len(self.seeds)
        if seeds == 1:
            return "One seed says nothing about chance: run at least three before you rely on it."
        other = self._other(best)
        if other is None:
            return f"{seeds} seeds."
        test = self._saving(best, other)
        assert test is not None
        agreed = (
            f"Of {seeds} seeds, {test.above if test.above < seeds else 'all'} have it ahead under that attack"
        )
        if (smallest := smallest_wilcoxon_p(seeds)) > LEVEL:
            return f"{agreed}; that is few: a rank test could not call it significant (p is {smallest:.3g} at best)."
        return f"{agreed} (rank test: p = {test.wilcoxon_p:.2g})."

    def _other(self, best: Standing) -> Standing | None:
        """What the leading rule is measured against: plain averaging, else the next best rule."""
        others = [standing for standing in self.standings if standing.method != best.method]
        return next((o for o in others if o.method == self.reference), others[0] if others else None)

    def _cost(self, best: Standing, other: Standing) -> Paired | None:
        return paired(other.values[CLEAN], best.values[CLEAN]) if CLEAN in best.values else None

    def _saving(self, best: Standing, other: Standing) -> Paired | None:
        attack = other.worst_attack
        return None if attack is None else paired(best.values[attack], other.values[attack])

    def _made(
        self,
        verdict: str,
        rule: str | None,
        headline: str,
        details: Iterable[str],
        best: Standing | None = None,
        tied: tuple[str, ...] = (),
    ) -> Recommendation:
        other = None if best is None else self._other(best)
        return Recommendation(
            self.setting, verdict, rule, headline, tuple(details), None if other is None else other.method,
            None if best is None or other is None else self._cost(best, other),
            None if best is None or other is None else self._saving(best, other),
            tied, tuple(self.seeds), self.standings, self.left_out,
        )  # fmt: skip


def _plain(method: str) -> str:
    return f"plain averaging ({method})" if method == BASELINE else method


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _interval(test: Paired, before: str = "") -> str:
    if test.low is None or test.high is None:
        return ""
    return f" ({before}95 % interval {difference(test.low)} to {difference(test.high)})"
