"""Checks of the metrics that a configuration names: those to measure, to monitor, to search by and to decide by."""

from collections.abc import Iterator

from vitrine.config.metrics import BASIC, EXTRA, RESERVED, VALIDATION, bias_of, extra_metrics
from vitrine.config.parts import is_dotted
from vitrine.config.schema import DataConfig, TrainConfig
from vitrine.config.sweep import DECISION_METRICS, OBJECTIVES, TrainCommand
from vitrine.errors import Fault
from vitrine.text import nearest

OWN = "or a function of yours in callbacks.metrics"


def metric_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield what is wrong with the metrics of ``callbacks``."""
    callbacks, data = config.callbacks, config.data
    known = extra_metrics(multi_label=data.multi_label)
    for name in callbacks.metrics:
        if not is_dotted(name) and name not in known:
            problem = f"is not one of {', '.join(known)}, or the dotted name of a function of yours"
            yield Fault("callbacks.metrics", name, problem, nearest(name, known))
        elif is_dotted(name) and (short := name.rpartition(".")[2]) in RESERVED:
            yield Fault("callbacks.metrics", name, f"must have another name: {short} is a built-in metric")
    monitored = {"monitor": callbacks.monitor}
    if callbacks.early_stopping is not None:
        monitored["early_stopping.monitor"] = callbacks.early_stopping.monitor
    measurable = [f"val/{name}" for name in (*BASIC, *known, *callbacks.own_metrics)]
    for key, metric in monitored.items():
        allowed = [*measurable, "last"] if key == "monitor" else measurable
        if metric in VALIDATION and metric not in allowed:
            labels = "several labels per image" if data.multi_label else "one label per image"
            yield Fault(f"callbacks.{key}", metric, f"is not a metric of {labels}; these are: {', '.join(measurable)}")
        elif problem := _of_further_target(metric, data):
            yield Fault(f"callbacks.{key}", metric, problem)
        elif metric not in allowed:
            problem = f"is not one of {', '.join(allowed)}, {OWN}"
            yield Fault(f"callbacks.{key}", metric, problem, nearest(metric, allowed))
    if "top5_acc" in callbacks.measured and "top5_acc" in known and data.num_classes <= 5:
        problem = f"is 1 with data.num_classes={data.num_classes}: an image's class is always among five"
        yield Fault("callbacks.metrics", "top5_acc", problem)


def _of_further_target(metric: str, data: DataConfig) -> str:
    """Return what to do in place of selecting by a metric of a target that is not the first; empty for others."""
    target = metric.rpartition("/")[2]
    if metric.count("/") < 2 or target not in data.targets[1:]:
        return ""
    order = ",".join([target, *(name for name in data.targets if name != target)])
    return f"is of a further target; metrics of the first select: data.targets=[{order}]"


def unmeasured(command: TrainCommand) -> Iterator[Fault]:
    """Yield a fault for each metric of a sweep that its runs do not measure.

    A search by a metric of the test images is refused with its space (command/space.py).
    """
    sweep, callbacks = command.sweep, command.callbacks
    searched = [metric for metric in sweep.metrics if sweep.sampler and not metric.startswith("test/")]
    decided = [sweep.metric] if sweep.method else []
    own = callbacks.own_metrics
    for key, metrics, built_in, stages in (
        ("sweep.metrics", searched, OBJECTIVES, ("val",)),
        ("sweep.metric", decided, DECISION_METRICS, ("val", "test")),
    ):
        known = [*built_in, *(f"{stage}/{name}" for stage in stages for name in own)]
        for metric in metrics:
            stage, _, name = metric.partition("/")
            if key == "sweep.metric" and (bias := bias_of(metric)):
                yield Fault(key, metric, f"cannot be decided by: {bias}", f"{stage}/loss")
            elif problem := _of_further_target(metric, command.data):
                yield Fault(key, metric, problem)
            elif metric not in known:
                yield Fault(key, metric, f"is not one of {', '.join(known)}, {OWN}", nearest(metric, known))
            elif stage == "val" and name in EXTRA and name not in callbacks.measured:
                missing = f"callbacks.metrics=[{','.join([*callbacks.metrics, name])}]"
                yield Fault(key, metric, f"is not measured; add {missing}")
