"""Save a view of a W&B project that compares runs: grouped by the varying keys, with means over seeds.

vitrine wandb-workspace ENTITY/PROJECT model.position
vitrine wandb-workspace ENTITY/PROJECT model.position model.patch_size --group SWEEP

Needs `pip install wandb-workspaces` and `wandb login`.
"""

import sys
from collections.abc import Sequence
from typing import Any

from vitrine.cli.arguments import errors_in_one_line, make_parser
from vitrine.config import TrainConfig
from vitrine.config.keys import keys
from vitrine.errors import VitrineError, first_line
from vitrine.text import did_you_mean, nearest


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the view and print its address."""
    parser = make_parser("wandb-workspace", __doc__)
    parser.add_argument("project", metavar="ENTITY/PROJECT")
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a configuration key that varies between runs")
    parser.add_argument("--group", help="only the runs of this sweep")
    options = parser.parse_args(arguments)
    with errors_in_one_line():
        workspace = layout(options.project, options.keys, options.group)
    try:
        workspace.save()
    except Exception as error:
        sys.exit(f"vitrine: the view could not be saved: {first_line(error)}; run `wandb login`")
    print(workspace.url)


def layout(project: str, varying: list[str], group: str | None = None) -> Any:
    """Return the view as a ``wandb_workspaces.workspaces.Workspace`` that is not saved yet.

    Raises:
        VitrineError: the project is not ENTITY/PROJECT, a key is not in the configuration, or the package is missing.
    """
    try:
        from wandb_workspaces import workspaces
        from wandb_workspaces.reports import v2
    except ImportError:
        raise VitrineError("views need another package: pip install wandb-workspaces") from None
    panels: Any = v2  # its names are not visible to type checkers
    entity, _, name = project.partition("/")
    if not entity or not name or "/" in name:
        raise VitrineError(f"{project} is not of the form ENTITY/PROJECT")
    known = list(keys(TrainConfig))
    for key in varying:
        if key not in known:
            match = nearest(key, known) or next((name for name in known if name.rpartition(".")[2] == key), "")
            raise VitrineError(f"{key} is not a configuration key{did_you_mean(match)}")
    mean = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    curves = [
        panels.LinePlot(title=title, x="epoch", y=[metric], title_x="epoch", **mean)
        for metric, title in (("val/acc", "validation accuracy"), ("val/loss", "validation loss"))
    ]
    columns = [panels.Config(key) for key in varying] + [
        panels.SummaryMetric(metric) for metric in ("val/acc", "test/acc")
    ]
    results = [
        panels.BarPlot(title="test accuracy of the best epoch", metrics=["test/acc"], **mean),
        panels.ParallelCoordinatesPlot(columns=[panels.ParallelCoordinatesPlotColumn(column) for column in columns]),
        panels.ParameterImportancePlot(with_respect_to="val/acc"),
    ]
    # The state of a pruned run is finished, too, and its curves are cut.
    filters = ["SummaryMetric('status') == 'finished'", *([f"Metric('Group') == {group!r}"] if group else [])]
    return workspaces.Workspace(
        entity=entity,
        project=name,
        name=f"{group or name}: {', '.join(varying)}",
        sections=[
            workspaces.Section(name="results", panels=results, is_open=True),
            workspaces.Section(name="training", panels=curves, is_open=True),
            workspaces.Section(name="pictures", panels=[panels.MediaBrowser(media_keys=["attention", "confusion"])]),
        ],
        runset_settings=workspaces.RunsetSettings(
            filters=" and ".join(filters), groupby=[workspaces.Config(key) for key in varying]
        ),
    )
