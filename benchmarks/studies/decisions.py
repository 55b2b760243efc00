"""Simulate sequential decisions where the truth is known: how often they are wrong, and how many seeds they need.

python benchmarks/studies/decisions.py             # simulates what is left (ten minutes on one core), writes the page
python benchmarks/studies/decisions.py --sweeps 2000 --out quick.json    # a quick look
python benchmarks/studies/decisions.py --adastop   # AdaStop as well: uv pip install adastop
python benchmarks/studies/decisions.py --page      # only writes docs/decisions.md
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats
from seeds import ROOT, STUDIES, markdown_table, write_between

from vitrine.compare.sequential_rule import Rule, welch_freedom
from vitrine.config.sweep import DECISION_METHODS
from vitrine.files import write_text

RESULTS = STUDIES / "decisions.json"
PAGE = ROOT / "docs" / "decisions.md"
SWEEPS = 20_000
ADASTOP_SWEEPS = 500
BATCH = 2_000  # sweeps held in memory at a time
ARMS = (2, 3, 5, 10)  # the baseline among them
SHAPES = ("normal", "t3", "skewed", "unequal variances", "one varies", "a third varies", "half differ")
ADASTOP_EFFECTS = (0.0, 1.0, 2.0, 5.0)
PEER_COLUMNS = {"found": ".1%", "seeds": ".1f", "our found": ".1%", "our seeds": ".1f"}
IMAGES = (0.3, 1.0, 3.0)
EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
ALPHA, MIN_SEEDS, MAX_SEEDS, POWER = 0.05, 3, 20, 0.8
FEW = 5  # maximum number of seeds of a short sweep
CORRELATION = 0.5  # of runs with the same seed, where they are paired


@dataclass(frozen=True)
class Scenario:
    """What is true, and how it is decided.

    Attributes:
        arms: number of configurations, the baseline among them.
        shape: one of ``SHAPES``: distribution of the metric over seeds. With "half differ", the first half of the arms
            has an effect of 3, and verdicts about the others are false.
        paired: runs with the same seed share half of their variance, and are compared as pairs; otherwise, nothing is
            shared, and groups are compared.
        method: of ``Rule``.
        effect: every arm's mean minus the baseline's, in standard deviations of a pair's difference, or of a run if
            runs are not paired.
        max_seeds: of the rule.
        images: standard error of every arm's difference that is due to the choice of test images, in the unit of
            ``effect``. It is known, and verdicts are about other images of the same kind.
    """

    arms: int
    shape: str
    paired: bool
    method: str
    effect: float = 0.0
    max_seeds: int = MAX_SEEDS
    images: float = 0.0

    @property
    def name(self) -> str:
        """Key of the result."""
        pairs = "paired" if self.paired else "not paired"
        few = "" if self.max_seeds == MAX_SEEDS else f", {self.max_seeds} seeds"
        images = f", images {self.images:g}" if self.images else ""
        return f"{self.method}, {self.arms} arms, {self.shape}, {pairs}, effect {self.effect:g}{few}{images}"

    @property
    def unit(self) -> float:
        """Standard deviation of a pair's difference, or of a run if runs are not paired."""
        return math.sqrt(2 - 2 * CORRELATION) if self.paired else 1.0

    @property
    def effects(self) -> np.ndarray:
        """Effect of each arm but the baseline, (arms - 1,)."""
        effects = np.full(self.arms - 1, self.effect)
        if self.shape == "half differ":
            effects[: (self.arms - 1) // 2] = 3.0
        return effects

    @property
    def rule(self) -> Rule:
        """The rule of each comparison."""
        return Rule.of_arms(self.arms - 1, ALPHA, None, MIN_SEEDS, self.max_seeds, self.method, paired=self.paired)


@dataclass(frozen=True)
class Outcome:
    """How a scenario's sweeps ended.

    Attributes:
        sweeps: number of simulated sweeps.
        wrong: share of sweeps with a false verdict: any verdict if there is no effect, else one of the wrong sign.
        found: share of arms with a true verdict.
        seeds: mean number of seeds until an arm is decided or given up.
        runs: mean number of runs of a sweep, as a share of all arms with all seeds.
        fixed: number of seeds of a fixed plan with the same error and a power of 80 %; at least ``MIN_SEEDS``.
        fixed_power: power of the fixed plan with all ``MAX_SEEDS`` seeds.
    """

    sweeps: int
    wrong: float
    found: float
    seeds: float
    runs: float
    fixed: int | None = None
    fixed_power: float | None = None


def scenarios() -> Iterator[Scenario]:
    """Those without a difference, and those with one."""
    for method in ("group_sequential", "anytime"):
        for paired in (True, False):
            for arms in ARMS:
                for shape in SHAPES:
                    yield Scenario(arms, shape, paired, method)
                    yield Scenario(arms, shape, paired, method, max_seeds=FEW)
                for images, most in product(IMAGES, (MAX_SEEDS, FEW)):
                    yield Scenario(arms, "normal", paired, method, max_seeds=most, images=images)
            for arms in ARMS:
                for effect in EFFECTS:
                    yield Scenario(arms, "normal", paired, method, effect)


def values(scenario: Scenario, sweeps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (sweeps, arms, max_seeds) values of the metric: standard deviation 1, arm 0 is the baseline."""
    shape = (sweeps, scenario.arms, scenario.max_seeds)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        if scenario.shape == "t3":
            return rng.standard_t(3, shape) / math.sqrt(3)
        if scenario.shape == "skewed":
            return 1 - rng.exponential(size=shape)  # most seeds near the best, some far below: skewness -2
        return rng.standard_normal(shape)

    own = draw(shape)
    if scenario.paired:
        own = math.sqrt(1 - CORRELATION) * own + math.sqrt(CORRELATION) * draw((sweeps, 1, scenario.max_seeds))
    if scenario.shape == "unequal variances":
        own = own * np.geomspace(1, 4, scenario.arms)[:, None]
    elif scenario.shape == "one varies":
        own[:, -1] *= 4
    elif scenario.shape == "a third varies":
        own[:, scenario.arms - scenario.arms // 3 :] *= 10
    own[:, 1:] += scenario.effects[:, None] * scenario.unit
    if scenario.images:  # what one choice of images adds to each arm, in all of its runs
        own += rng.standard_normal((sweeps, scenario.arms, 1)) * scenario.images * scenario.unit / math.sqrt(2)
    return own


@dataclass
class Verdicts:
    """How comparisons ended: arrays of shape (sweeps, arms - 1).

    Attributes:
        verdict: empty where there is none.
        seeds: number of seeds until then.
        mean: the arm's mean minus the baseline's at the last look.
        half: half the width of its interval.
    """

    verdict: np.ndarray
    seeds: np.ndarray
    mean: np.ndarray
    half: np.ndarray


def decide(rule: Rule, x: np.ndarray, image_errors: np.ndarray | None = None) -> Verdicts:
    """Decide all arms of many sweeps, as ``Decision`` does arm by arm.

    Args:
        rule: of each comparison.
        x: (sweeps, arms, max_seeds) values; arm 0 is the baseline.
        image_errors: (sweeps, arms - 1, looks) standard errors that are due to test images.
    """
    pairs = rule.paired or rule.method == "anytime"
    shape = (len(x), x.shape[1] - 1)
    found = Verdicts(np.full(shape, "", "<U6"), np.full(shape, rule.max_seeds), np.zeros(shape), np.zeros(shape))
    left, variances, freedoms = np.ones(shape, bool), np.zeros(shape), np.ones(shape)
    for look, count in enumerate(range(rule.min_seeds, rule.max_seeds + 1)):
        first, baseline = x[:, 1:, :count], x[:, :1, :count]
        mean = first.mean(-1) - baseline.mean(-1)
        own = (first - baseline if pairs else first).var(-1, ddof=1)
        variances, freedoms = np.where(left, own, variances), np.where(left, count - 1, freedoms)
        known, freedom = variances, freedoms
        if rule.shared_freedom:
            known, freedom = rule.share_variances(variances, freedoms)
        squared = known / count
        if not pairs:
            theirs = baseline.var(-1, ddof=1) / count
            freedom = welch_freedom((squared, theirs), (freedom, np.full_like(theirs, count - 1)))
            squared = squared + theirs
        error, images = np.sqrt(squared), 0.0 if image_errors is None else image_errors[..., look]
        half = rule.half_width(error, count, freedom, images)
        verdict = rule.verdict(mean, half)
        ends = left & ((verdict != "") | rule.futile(mean, error, count, images) | (count == rule.max_seeds))
        for known_so_far, now in ((found.verdict, verdict), (found.mean, mean), (found.half, half)):
            known_so_far[ends] = now[ends]
        found.seeds[ends] = count
        left &= ~ends
        if not left.any():
            break
    return found


def simulate(scenario: Scenario, sweeps: int) -> Outcome:
    """Run a scenario; the same random numbers each time."""
    rng = np.random.default_rng([sum(scenario.name.encode()), scenario.arms])
    wrong, found, seeds, runs = [], [], [], []
    for start in range(0, sweeps, BATCH):
        x = values(scenario, min(BATCH, sweeps - start), rng)
        image_errors = np.full((1, 1, scenario.max_seeds), scenario.images * scenario.unit)
        ended = decide(scenario.rule, x, image_errors)
        right = (ended.verdict == "better") & (scenario.effects > 0)
        wrong.append(((ended.verdict != "") & ~right).any(1))
        found.append(right)
        seeds.append(ended.seeds)
        runs.append((ended.seeds.sum(1) + ended.seeds.max(1)) / (scenario.arms * scenario.max_seeds))
    means = [float(np.concatenate(each).mean()) for each in (wrong, found, seeds, runs)]
    outcome = Outcome(sweeps, *means)
    if not scenario.effect:
        return outcome
    plan = [_fixed_power(scenario, n) for n in range(2, 1001)]
    enough = next(n for n, power in enumerate(plan, start=2) if power >= POWER)
    return replace(outcome, fixed=max(MIN_SEEDS, enough), fixed_power=plan[MAX_SEEDS - 2])


def _fixed_power(scenario: Scenario, n: int) -> float:
    """Power of a t-test with ``n`` seeds, its level divided by the number of comparisons."""
    freedom = n - 1 if scenario.paired else 2 * n - 2
    shift = scenario.effect * math.sqrt(n if scenario.paired else n / 2)
    bound = stats.t.isf(ALPHA / (scenario.arms - 1) / 2, freedom)
    power = float(stats.nct.sf(bound, freedom, shift))
    return power if math.isfinite(power) else 1.0  # not computable where it is 1


def adastop(effect: float) -> dict[str, float]:
    """Decide between two unpaired groups with AdaStop (arXiv:2306.10882), five seeds at a time, and with ours.

    Both see the same values. AdaStop's permutation test needs five seeds before it can reject at 5 % over four looks.
    """
    from adastop import MultipleAgentsComparator

    scenario = Scenario(2, "normal", False, "group_sequential", effect)
    x = values(scenario, ADASTOP_SWEEPS, np.random.default_rng(ADASTOP_SWEEPS))
    ours = decide(scenario.rule, x)
    found, seeds = [], []
    for number, sides in enumerate(x):
        comparator = MultipleAgentsComparator(n=5, K=MAX_SEEDS // 5, B=1000, alpha=ALPHA, seed=number)
        while not comparator.is_finished:
            until = 5 * (comparator.k + 1)
            comparator.partial_compare({"a": sides[0, :until], "b": sides[1, :until]}, verbose=False)
        found.append(list(comparator.decisions.values()) != ["equal"])
        seeds.append(5 * comparator.k)
    return {
        "sweeps": ADASTOP_SWEEPS,
        "found": float(np.mean(found)),
        "seeds": float(np.mean(seeds)),
        "our found": float((ours.verdict != "").mean()),
        "our seeds": float(ours.seeds.mean()),
    }


def error_table(known: Mapping[str, Any]) -> list[str]:
    """False findings, in percent, for each distribution."""
    cases = [(shape, 0.0) for shape in SHAPES] + [("normal", images) for images in IMAGES]
    rows = []
    for (shape, images), paired, most in product(cases, (True, False), (MAX_SEEDS, FEW)):
        new = f", new images {images:g}" if images else ""
        cells = [f"{shape}{new}, {'paired' if paired else 'not paired'}, at most {most} seeds"]
        for method, arms in product(DECISION_METHODS, ARMS):
            scenario = Scenario(arms, shape, paired, method, max_seeds=most, images=images)
            cells.append(f"{known[scenario.name]['wrong']:.1%}")
        rows.append(cells)
    return markdown_table(["", *(f"{method}, {arms} arms" for method, arms in product(DECISION_METHODS, ARMS))], rows)


def power_table(known: Mapping[str, Any], arms: int, *, paired: bool) -> list[str]:
    """True findings and seeds beside a fixed plan, for each effect."""
    columns = ["effect", "fixed plan: seeds", f"power with {MAX_SEEDS} seeds"]
    columns += [f"{method}: {what}" for method in DECISION_METHODS for what in ("power", "seeds", "of the plan")]
    rows = []
    for effect in EFFECTS:
        found = [known[Scenario(arms, "normal", paired, method, effect).name] for method in DECISION_METHODS]
        row = [f"{effect:g}", str(found[0]["fixed"]), f"{found[0]['fixed_power']:.2f}"]
        for one in found:
            row += [f"{one['found']:.2f}", f"{one['seeds']:.1f}", f"{one['seeds'] / one['fixed']:.2f}"]
        rows.append(row)
    return markdown_table(columns, rows)


def write_page(known: Mapping[str, Any]) -> None:
    """Write the tables into docs/decisions.md."""
    lines = [*error_table(known), ""]
    for arms, paired in product(ARMS, (True, False)):
        lines += [
            f"{arms} arms, {'paired' if paired else 'not paired'}:",
            "",
            *power_table(known, arms, paired=paired),
            "",
        ]
    write_between(PAGE, "simulations", lines[:-1])
    peers = {name: found for name, found in known.items() if name.startswith("adastop")}
    rows = [
        [name.partition(" effect ")[2], *(f"{found[key]:{form}}" for key, form in PEER_COLUMNS.items())]
        for name, found in peers.items()
    ]
    columns = ["effect", "AdaStop: found", "seeds", "group_sequential: found", "seeds"]
    write_between(PAGE, "adastop", markdown_table(columns, rows))


def main() -> None:
    """Simulate what is left, write results after each scenario, then the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=SWEEPS, help=f"per scenario; {SWEEPS:,} by default")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results; the page is written from the default")
    parser.add_argument("--adastop", action="store_true", help="simulate AdaStop, too")
    parser.add_argument("--page", action="store_true", help="simulate nothing")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    tasks: dict[str, Callable[[], dict[str, Any]]] = {}
    for scenario in scenarios():
        if known.get(scenario.name, {}).get("sweeps", 0) < options.sweeps:
            tasks[scenario.name] = partial(_plain_outcome, scenario, options.sweeps)
    for effect in ADASTOP_EFFECTS:
        if options.adastop and (name := f"adastop, effect {effect:g}") not in known:
            tasks[name] = partial(adastop, effect)
    for name, task in ({} if options.page else tasks).items():
        known[name] = task()
        print(f"{name}: {known[name]}", flush=True)
        write_text(options.out, json.dumps(known, indent=1) + "\n")
    if options.out == RESULTS:
        write_page(known)


def _plain_outcome(scenario: Scenario, sweeps: int) -> dict[str, Any]:
    outcome = asdict(simulate(scenario, sweeps))
    return {name: value for name, value in outcome.items() if value is not None}


if __name__ == "__main__":
    main()
