"""The best of single runs: of which configuration it is, whether it is comparable, and what it owes to luck."""

import json
import shlex
from collections.abc import Hashable, Sequence
from statistics import fmean
from typing import Any

from vitrine.compare.folds import repetition_of
from vitrine.compare.selection import corrected_single_run, fresh_seeds_command, luck_of
from vitrine.compare.table import configuration_key, distinguishes, part_sources
from vitrine.config.metrics import lower_is_better
from vitrine.runs.record import RunRecord
from vitrine.runs.registry import RunEntry
from vitrine.text import as_override, plural


def latest_by_configuration(runs: Sequence[RunEntry], metric: str) -> list[list[RunEntry]]:
    """Return the runs of each configuration, without those whose seed, or fold, ran again later.

    First the configurations with the most runs, and of these those with the best mean; in each, the best run first. The
    source of the user's own parts belongs to a configuration.
    """
    latest: dict[str, dict[Hashable, RunEntry]] = {}
    for run in sorted(runs, key=lambda run: str(run.facts.get("started"))):
        latest.setdefault(_configuration(run), {})[repetition_of(run.config, run.path)] = run
    sign = 1 if lower_is_better(metric) else -1
    configurations = [sorted(some.values(), key=lambda run: sign * run.metrics[metric]) for some in latest.values()]
    return sorted(
        configurations,
        key=lambda members: (-len(members), sign * fmean(run.metrics[metric] for run in members)),
    )


def validation_warning(runs: Sequence[RunEntry], best: RunEntry) -> str:
    """Return a warning if others of ``runs`` were validated on other images, so that the best need not be better."""

    def images(run: RunEntry) -> tuple[Any, ...]:
        data = str(run.config.get("data.name", ""))
        return run.facts.get("validation"), data, distinguishes("data.root", data) and run.config.get("data.root")

    unlike = [run for run in runs if images(run) != images(best)]
    if not unlike:
        return ""
    keys = ["data.name", *(key for key in best.config if key.startswith("data."))]
    key = next((key for key in keys if any(run.config.get(key) != best.config.get(key) for run in unlike)), "")
    value = as_override(best.config.get(key))
    filtered = f"{key}={value}" if "," not in value or value.startswith("[") else f"{key}={value!r}"
    hint = f": give filters, such as {shlex.quote(filtered)}" if key else ""
    others = f"{len(unlike)} of {plural(len(runs), 'run')} were validated on other images than this one"
    return f"{others}, so it need not be better than they are{hint}"


def luck_sentence(
    configurations: Sequence[Sequence[RunEntry]], best: RunEntry, metric: str, entries: Sequence[RunEntry]
) -> str:
    """Return what the best run is worth beyond having been selected, and the command that measures it.

    Its seeds are fresh to all ``entries``, also those that did not finish.

    Empty if it is the only run.
    """
    if sum(map(len, configurations)) < 2:
        return ""
    groups = [{repetition_of(run.config, run.path): run.metrics[metric] for run in runs} for runs in configurations]
    value = float(best.metrics[metric])
    corrected = corrected_single_run(groups, lower_is_better=lower_is_better(metric))
    part = luck_of(f"{value:.4f}", "" if corrected is None else f"{corrected:.4f}")
    known = [run.config.get("seed", 0) for runs in configurations if best in runs for run in runs]
    seeds = {seed for seed in known if isinstance(seed, int)}
    used = [run.config.get("seed") for run in entries]
    command = fresh_seeds_command(best.path, RunRecord.open(best.path).facts, sorted(seeds), used)
    return f"its {metric} {part}; on fresh seeds:\n  {command}"


def _configuration(run: RunEntry) -> str:
    data = str(run.config.get("data.name", ""))
    sources = part_sources(run.config, data, run.facts)
    return configuration_key(run.config, data) + json.dumps(sources, sort_keys=True)
