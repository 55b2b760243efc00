"""``sweep=decide``: train seeds until each configuration is better or worse than the first, or is given up.

The rule is :class:`vitrine.compare.sequential.Decision`. It wants seeds in rounds, any launcher trains them, and what
is decided is dropped. Its plan is announced in sweep.json before the first run. Nothing else is stored: after an
interruption, the decision follows again from the run folders.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrine.command.compose import Point, Variants
from vitrine.command.multirun import name_of_sweep, varying_keys
from vitrine.compare.caveats import best_epoch_caveat, few_groups_caveat
from vitrine.compare.failures import FailureRate
from vitrine.compare.load import as_typed
from vitrine.compare.metric import Metric
from vitrine.compare.predictions import correct_images
from vitrine.compare.sequential import Decision, Look
from vitrine.compare.sequential_rule import RULE_VERSION
from vitrine.config.metrics import lower_is_better
from vitrine.config.sweep import TrainCommand
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.runs import RunRecord
from vitrine.runs.data_changes import run_changes
from vitrine.runs.predictions import read_groups
from vitrine.runs.record import now
from vitrine.runs.status import ENDED
from vitrine.sweeps.divergence import forget_outdated
from vitrine.sweeps.fingerprint import TrialFolders, fingerprint, sweep_name
from vitrine.sweeps.queue import TrialQueue
from vitrine.sweeps.summary import print_failures, print_location
from vitrine.sweeps.sweep import DECIDES, Sweep, folder_of
from vitrine.sweeps.trial import Trial, TrialResult, label_of, read_result
from vitrine.text import listed, plural

Run = tuple[str, int]  # arm, and seed from 0


class SeedQueue(TrialQueue):
    """Hands out the seeds that a decision wants.

    Args:
        points: the configurations, the baseline first.
        sweep: its folder, as :func:`plan_decision` returns it; trials are added to it.

    Attributes:
        decision: the rule, with all results so far.
        images: number of images that the metric is measured on; ``None`` until a run has recorded it.
        monitored: metrics that choose the epochs of runs.
        group_rules: values of ``data.group``.

    Raises:
        RunError: finished runs of the decision were trained or measured on different data; :meth:`tell`, too.
    """

    def __init__(self, points: Sequence[Point], sweep: Sweep) -> None:
        command: TrainCommand = points[0].config
        super().__init__(force=command.force)
        self.sweep, self.metric, self._first_seed = sweep, Metric(command.sweep.metric), command.seed
        self._varies = {arm_of(point.varies): point.varies for point in points}
        self._variants = Variants([override for override in sweep.common if override.partition("=")[0] != "seed"])
        self._folders = TrialFolders(sweep.folder)
        self.decision = _new_decision(points)
        self.images: int | None = None
        self._first: tuple[Path, dict[str, Any]] | None = None  # finished run, and its facts
        self.monitored = {point.config.callbacks.monitor for point in points}
        self.group_rules = sorted({point.config.data.group for point in points} - {None})
        self._trials: dict[Run, Trial] = {}
        self._runs: dict[Path, Run] = {}
        self._handed_out: set[Run] = set()
        self._elsewhere: set[Run] = set()
        self._unfinished: set[Run] = set()  # of this session: interrupted, or lost with its process
        self._began = now()
        while self._take_finished():  # of earlier sessions; what failed is wanted again
            pass

    def ask(self) -> Trial | None:
        """Return the next trial to train, or ``None`` if there is none at present."""
        for trial, result in self._released([self._trials[run] for run in self._elsewhere]):
            run = self._runs[trial.folder]
            self._elsewhere.remove(run)
            if result.status in ENDED:
                self._take(run, result)
        while free := [run for run in self._open() if run not in self._handed_out | self._elsewhere]:
            trial = self._trial(free[0])
            if not self._failed_meanwhile(trial):
                self._handed_out.add(free[0])
                return trial
            self._take(free[0], read_result(trial.folder))
        return None

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Take the result of a trial from :meth:`ask`."""
        run = self._runs[trial.folder]
        self._handed_out.discard(run)
        if result.status in ENDED:
            self._add(run, result)
        else:
            self._unfinished.add(run)
        self._notify_ended(trial, result)

    def put_back(self, trial: Trial) -> None:
        """Take back a trial that another process is training."""
        run = self._runs[trial.folder]
        self._handed_out.discard(run)
        self._elsewhere.add(run)

    @property
    def done(self) -> bool:
        """Whether every configuration is decided or given up, and no trial runs, in other processes included."""
        return not (self._handed_out or self._elsewhere or self._open())

    def progress(self) -> list[str]:
        """Each configuration's difference from the baseline at its last look, one line each."""
        lines = []
        for arm in self._varies:
            if arm != self.decision.baseline and (looks := self.decision.looks(arm)):
                lines.append(f"{arm}: {look_text(looks[-1], self.metric)}")
        return lines

    def describe(self) -> dict[str, Any]:
        """Entries of sweep.json: the plan, every look, and the verdicts."""
        looks = {arm: self.decision.looks(arm) for arm in self.decision.verdicts}
        return {
            "complete": self.done and not self._unfinished,
            "decision": {
                **_plan_of(self.decision, self.metric),
                "seed": self._first_seed,
                "verdicts": self.decision.verdicts,
                "findings": {arm: finding(arm, self.decision, self.metric, self.images) for arm in looks},
                "looks": {arm: [_plain(look) for look in found] for arm, found in looks.items()},
                "runs": self.decision.runs,
                "max_runs": self.decision.max_runs,
            },
        }

    def _open(self) -> list[Run]:
        return [run for run in self.decision.wanted() if run not in self._unfinished]

    def _take_finished(self) -> bool:
        """Add the wanted runs that are already finished; return whether there were any."""
        found, wanted = False, self.decision.wanted()
        forget_outdated([self._trial(run) for run in wanted])
        for run in wanted:
            result = read_result(self._trial(run).folder)
            if result.status in ENDED and result.status != "failed":
                self._add(run, result)
                found = True
        return found

    def _take(self, run: Run, result: TrialResult) -> None:
        """Take the result of a trial that another process has ended."""
        self._add(run, result)
        self._notify_ended(self._trials[run], result)

    def _failed_meanwhile(self, trial: Trial) -> bool:
        """Whether a trial failed in another process since this one began: all processes come to one verdict."""
        if read_result(trial.folder).status != "failed":
            return False
        return str(RunRecord(trial.folder).facts.get("ended", "")) > self._began

    def _trial(self, run: Run) -> Trial:
        """The trial of an arm and seed, which is added to the sweep when it is first asked for."""
        if run not in self._trials:
            arm, seed = run
            varies = {**self._varies[arm], "seed": str(self._first_seed + seed)}
            config = self._variants.config(varies)
            if isinstance(config, ConfigError):
                raise config
            folder = self._folders.find(config.run, varies)
            number = len(self.sweep.trials)
            self._trials[run] = Trial(
                number=number, config=config.run, varies=varies, folder=folder, trust=config.trust
            )
            self._runs[folder] = run
            self.sweep.trials.append(self._trials[run])
        return self._trials[run]

    def _add(self, run: Run, result: TrialResult) -> None:
        """Give a run's result to the decision; a run that failed or diverged has no value."""
        value, correct, groups = result.metrics.get(self.metric.name, math.nan), None, None
        folder = self._trials[run].folder
        if result.status == "finished" and math.isfinite(value):
            stage, facts = self.metric.name.partition("/")[0], RunRecord(folder).facts
            self._check_data(folder, facts, ["train", stage])
            self.images = (facts.get("images") or {}).get(stage, self.images)
            self.decision.resolution = 1 / self.images if self.images and self.metric.counts_images else 0.0
            if self.metric.name == "test/acc" and (path := folder / "predictions.npz").is_file():
                found = correct_images(path)
                if len(found) > 1:  # one image does not tell how others vary
                    correct, groups = found, read_groups(path)
        self.decision.add(*run, None if result.status != "finished" else value, correct, groups)

    def _check_data(self, folder: Path, facts: dict[str, Any], splits: Sequence[str]) -> None:
        """Raise RunError where the data of a finished run is not that of the first one."""
        if self._first is None:
            self._first = folder, facts
        first, known = self._first
        if differs := listed(run_changes(known, facts, splits), separator="; "):
            hint = "they cannot be compared: delete the runs on outdated data, or start over with rerun=true"
            raise RunError(f"the data of {folder} is not that of {first}: {differs}; {hint}")


def plan_decision(points: Sequence[Point]) -> Sweep:
    """Plan the decision between ``points``, in the folder where the same command left it. Nothing is written.

    Raises:
        ConfigError: there are not two configurations, changed data is accepted, or this folder's decision was announced
            with another plan.
        RunError: the folder holds another sweep, was written by another version of vitrine, or a link in it leads out
            of it.
    """
    command: TrainCommand = points[0].config
    common, keys = points[0].shared, varying_keys(points)
    if len(points) < 2:
        problem = "needs at least two configurations: the baseline, and others, such as position=learned,rope"
        raise ConfigError([Fault("sweep.method", str(command.sweep.method), problem)])
    if command.accept_changed_data:
        problem = "cannot be used with sweep=decide: runs on different data cannot be compared; rerun=true starts over"
        raise ConfigError([Fault("accept_changed_data", "true", problem)])
    _check_distinct(points)
    _check_images(points)
    own_name = sweep_name(*name_of_sweep(points), command.data.name, DECIDES)
    folder, known = folder_of(points[0], own_name)
    decision = _new_decision(points)
    if known:
        if known.get("decision") is None or known.get("own_name", own_name) != own_name:
            raise RunError(f"{folder} holds another sweep; set another sweep.name, or hydra.sweep.dir, for this one")
        _check_announced(known["decision"], _plan_of(decision, Metric(command.sweep.metric)))
    varying = [*keys, "seed"]
    return Sweep(
        folder, [], common, varying, command.sweep.metric, decision.max_runs, own_name=own_name, ranks_runs=False
    )


def look_text(look: Look, metric: Metric) -> str:
    """``after 4 seeds, +0.83 points [-0.20, +1.86]``."""
    after = f"after {plural(look.seeds, 'seed')}"
    if math.isinf(look.low):
        return f"{after}, no interval yet"
    bounds = f"[{metric.signed(look.low)}, {metric.signed(look.high)}]"
    return f"{after}, {metric.signed(look.mean)}{metric.difference_unit} {bounds}"


def finding(arm: str, decision: Decision, metric: Metric, images: int | None = None) -> str:
    """The verdict about an arm in a sentence, with its interval and on what it holds.

    Args:
        arm: one that is compared with the baseline.
        decision: with its results so far.
        metric: what it decides by.
        images: number of images that the metric is measured on, if known.
    """
    looks, verdict = decision.looks(arm), decision.verdicts[arm]
    if not looks:
        others = " of it or of others that it is looked at with" if decision.rule.shared_freedom else ""
        return f"{arm}: fewer than {plural(decision.rule.min_seeds, 'seed')} have ended{others}"
    look = looks[-1]
    size = metric.size(decision.rule.difference or 0)
    says = {
        "better": f"{arm} is better than {decision.baseline}",
        "worse": f"{arm} is worse than {decision.baseline}",
        "equal": f"{arm} and {decision.baseline} are equal within {size}",
        "undecided": f"{arm} and {decision.baseline}: undecided",
        None: f"{arm} and {decision.baseline}: not decided yet",
    }[verdict]
    parts = [f"{says} {look_text(look, metric)}"]
    if verdict == "undecided" and look.seeds < decision.rule.max_seeds:
        parts.append(
            "given up: " + ("too few runs finished" if math.isinf(look.low) else "a verdict had become improbable")
        )
    ours, theirs = (FailureRate(failed, look.seeds) for failed in look.failures)
    failed = [f"of {arm}, {ours}"] if ours.failed or verdict == "better" else []
    failed += [f"of {decision.baseline}, {theirs}"] if theirs.failed else []
    if failed:
        parts.append(" and ".join(failed))
    if math.isfinite(look.correlation):
        parts.append(f"r = {look.correlation:.2f}")
    if look.groups:
        parts.append(f"over {look.groups:,} groups of test images")
    elif not look.new_images:
        stage = metric.title.partition(" ")[0]  # test or validation
        these = plural(images, f"{stage} image") if images else f"{stage} images"
        parts.append(f"on {'this' if images == 1 else 'these'} {these}")
    return "; ".join(parts)


def print_decision(queue: SeedQueue, results: Sequence[TrialResult]) -> int:
    """Print a line for each configuration, their caveats, cost and place; return how many of ``results`` failed."""
    decision = queue.decision
    print()
    for arm in decision.verdicts:
        print(finding(arm, decision, queue.metric, queue.images))
    groups = max((look.groups for arm in decision.verdicts for look in decision.looks(arm)[-1:]), default=0)
    caveats = best_epoch_caveat(queue.metric, queue.monitored), few_groups_caveat(groups, queue.group_rules)
    for caveat in filter(None, caveats):
        print(f"! {caveat}")
    level = f"{100 * (1 - decision.alpha):g} %"
    print(
        f"\n{decision.runs} of {decision.max_runs} runs; with {level} confidence, all intervals hold after every seed"
    )
    print_location(queue.sweep)
    return print_failures(queue.sweep, results)


def arm_of(varies: Mapping[str, str]) -> str:
    """The name of a configuration: its varying overrides, whatever their order was on the command line."""
    return label_of(dict(sorted(varies.items())))


def _new_decision(points: Sequence[Point]) -> Decision:
    settings = points[0].config.sweep
    arms = [arm_of(point.varies) for point in points]
    return Decision(
        arms,
        arms[0],
        settings.alpha,
        settings.difference,
        settings.min_seeds,
        settings.max_seeds,
        settings.method,
        lower_is_better=lower_is_better(settings.metric),
    )


def _check_distinct(points: Sequence[Point]) -> None:
    """Raise ConfigError where two configurations would be the same trials, however they are spelled: 0 and 0.0."""
    known: dict[str, str] = {}
    for point in points:
        arm, identity = arm_of(point.varies), fingerprint(point.config.run)
        if identity in known:
            problem = "is given twice" if known[identity] == arm else f"trains the same as {known[identity]}"
            hint = "give each configuration once: sweep.max_seeds sets how often it is trained at most"
            raise ConfigError([Fault(arm, "", f"{problem}; {hint}")])
        known[identity] = arm


def _check_images(points: Sequence[Point]) -> None:
    """Raise ConfigError where configurations would be measured on different images."""
    validates = points[0].config.sweep.metric.startswith("val/")
    for name in ("name", "root", *(("val_fraction", "val_seed", "folds", "fold", "group") if validates else ())):
        values = list(dict.fromkeys(as_typed(getattr(point.config.data, name)) for point in points))
        if len(values) > 1:
            problem = f"differs from {values[0]}: accuracies on different images cannot be compared"
            raise ConfigError([Fault(f"data.{name}", values[1], problem)])


def _plan_of(decision: Decision, metric: Metric) -> dict[str, Any]:
    """What is announced before the first run, and may not change after it."""
    rule = decision.rule
    return {
        "baseline": decision.baseline,
        "arms": decision.arms,
        "metric": metric.name,
        "alpha": decision.alpha,
        "difference": rule.difference,
        "min_seeds": rule.min_seeds,
        "max_seeds": rule.max_seeds,
        "method": rule.method,
        "rule": RULE_VERSION,
    }


def _check_announced(announced: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    changed = [name for name, value in plan.items() if _unordered(announced.get(name)) != _unordered(value)]
    if changed:
        hint = "verdicts hold only for what was announced before the first run; rerun=true starts over in a new folder"
        names = {"arms": "configurations", "baseline": "baseline", "rule": "the rule of this version of vitrine"}
        faults = [
            Fault(names.get(name, f"sweep.{name}"), str(plan[name]), f"was {announced.get(name, 'another')}: {hint}")
            for name in changed
        ]
        raise ConfigError(faults)


def _unordered(value: Any) -> Any:
    """An entry of a plan in which the order of arms does not count."""
    return sorted(map(str, value)) if isinstance(value, list) else value


def _plain(look: Look) -> dict[str, Any]:
    """A look as JSON values; infinite bounds and unknown numbers are null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(look).items()
    }
