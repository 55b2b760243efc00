"""List runs, show one, compare two, find the best, export them, delete some.

vitrine runs list                                    # all runs in outputs/, the newest last
vitrine runs list outputs/sweeps/NAME status=finished position=rope,learned --columns seed,val/acc
vitrine runs list --since 7d tags=night              # columns: facts, metrics, configuration keys
vitrine runs list 'val/acc>0.9' --sort val/acc       # the best accuracy last; --descending for losses
vitrine runs show RUN
vitrine runs diff RUN RUN                            # configuration, own parts, code, versions, machine, metrics
vitrine runs best data=mnist --by val/acc            # selected on validation; shows its test accuracy, too
vitrine runs export --to runs.csv                    # every column; also .json
vitrine runs rm RUN RUN                              # asks first; none of them may be running
"""

import argparse
import csv
import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from vitrine.cli.arguments import errors_in_one_line, make_parser, positive
from vitrine.cli.tables import print_rows, print_section
from vitrine.durations import clock
from vitrine.errors import RunError
from vitrine.files import check_target, naming_failed_write, replacing
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import kept_epochs
from vitrine.runs.diff import diff_runs
from vitrine.runs.flatten import flatten
from vitrine.runs.provenance import program
from vitrine.runs.registry import COMPARISONS, RunList, best_runs, find_runs, remove_runs
from vitrine.text import as_override, did_you_mean, file_size, one_line, plural, printable, report, without_formula

FILTER = re.compile(r"\s*([^<>=]*?)\s*(=[<>=]|[<>]=?|!?=)\s*(.*?)\s*", re.DOTALL)
OTHER_SIGNS = {"==": "=", "=>": ">=", "=<": "<=", "!=": ""}  # and what is meant
TERMINAL_ROWS = 40  # rows shown in a terminal without --limit
DIFF_LINES = 200  # of source that differs
# Only a file that has it is replaced by an export.
EXPORT_MARKS = {".csv": b"path,run,status,started,", ".json": b'\n    "flops_per_image": '}
COLUMNS = "path,status,started,epochs,val/acc,train_seconds,tags"
SHOWN_FACTS = (
    "epochs",
    "parameters",
    "flops_per_image",
    "device",
    "precision",
    "images",
    "validation",
    "error",
    "like",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run the command."""
    parser = make_parser("runs", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|show|diff|best|export|rm")
    selection = argparse.ArgumentParser(add_help=False)
    selection.add_argument(
        "filters",
        nargs="*",
        metavar="FOLDER or COLUMN=VALUE",
        help="folders to search, by default outputs, and values that runs must have; also 'val/acc>0.9', in quotes",
    )
    selection.add_argument("--since", metavar="TIME", help="started since a date, 2026-01-31, or within 7d, 12h, 1h30m")
    parser_list = commands.add_parser("list", parents=[selection], help="list runs, one per line")
    parser_list.add_argument("--columns", default=COLUMNS, metavar="A,B,..", help=f"default: {COLUMNS}")
    parser_list.add_argument("--sort", metavar="COLUMN", help="the smallest value first; default: started")
    parser_list.add_argument("--descending", action="store_true", help="with --sort: the largest value first")
    parser_list.add_argument(
        "--limit", type=positive, metavar="N", help=f"the last N; default: {TERMINAL_ROWS} in a terminal, else all"
    )
    parser_list.set_defaults(run_command=list_runs)
    parser_show = commands.add_parser("show", help="show everything about one run")
    parser_show.add_argument("run", metavar="RUN")
    parser_show.set_defaults(run_command=show)
    parser_diff = commands.add_parser("diff", help="show what differs between two runs")
    parser_diff.add_argument("runs", nargs=2, metavar="RUN")
    parser_diff.set_defaults(run_command=diff)
    parser_best = commands.add_parser("best", parents=[selection], help="the best finished run by a validation metric")
    parser_best.add_argument("--by", default="val/acc", metavar="METRIC")
    parser_best.set_defaults(run_command=show_best)
    parser_export = commands.add_parser("export", parents=[selection], help="write every column of every run to a file")
    parser_export.add_argument("--to", type=Path, required=True, metavar="FILE", help="a .csv or .json file")
    parser_export.set_defaults(run_command=export)
    parser_rm = commands.add_parser("rm", help="delete run folders; asks first")
    parser_rm.add_argument("runs", nargs="+", metavar="RUN")
    parser_rm.add_argument("--yes", action="store_true", help="do not ask")
    parser_rm.add_argument("--force", action="store_true", help="also delete runs marked as running on other machines")
    parser_rm.set_defaults(run_command=delete)
    options, rest = parser.parse_known_args(arguments)  # filters may follow options
    if any(argument.startswith("-") or "filters" not in options for argument in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.filters += rest
    with errors_in_one_line():
        options.run_command(options)


def list_runs(options: argparse.Namespace) -> None:
    """List runs, one per line."""
    found = select(options)
    if not found.entries:
        print("no runs found")
        return
    if options.descending and not options.sort:
        raise RunError("--descending needs --sort COLUMN")
    if options.sort:
        found = found.by(options.sort, descending=options.descending)
    names = options.columns.split(",")
    columns = [name if options.columns == COLUMNS else found.column(name) for name in names]
    limit = options.limit or (TERMINAL_ROWS if sys.stdout.isatty() else len(found.entries))
    shown = found.entries[-limit:]
    if options.columns == COLUMNS and len({user for run in shown if (user := run.value("user"))}) > 1:
        columns.insert(columns.index("started"), "user")
    print_rows(columns, ([cell_text(name, run.value(name)) for name in columns] for run in shown))
    if limit < len(found.entries):
        print(f"the last {limit} of {plural(len(found.entries), 'run')}; --limit N for more")


def show(options: argparse.Namespace) -> None:
    """Show everything about one run."""
    record = RunRecord.open(options.run)
    facts = record.facts
    head = {"run": record.path, "status": record.status}
    head |= {name: facts.get(name) for name in ("started", "ended", "user", "group", "varies", "tags", "command")}
    head |= {name: facts.get(name) for name in SHOWN_FACTS} | {"kept_epochs": kept_epochs(record)}
    sections = {"": head, "code": facts.get("code") or {}, "versions": facts.get("versions") or {}}
    sections |= {"machine": facts.get("machine") or {}, "metrics": record.metrics, "config": flatten(record.config)}
    for title, values in sections.items():
        known = {name: value for name, value in values.items() if value not in (None, [], "")}
        print_section(title, metric_rows(known))


def diff(options: argparse.Namespace) -> None:
    """Show what differs between two runs."""
    from vitrine.runs.user_code import FOLDER, source_diff  # imports OmegaConf

    run, other = map(RunRecord.open, options.runs)
    sections = diff_runs(run, other)
    sections["metrics"] = with_whole_classes(sections["metrics"], run.metrics, other.metrics)
    for title, values in sections.items():
        if values:
            sides = [{name: pair[side] for name, pair in values.items() if pair[side] is not None} for side in (0, 1)]
            print_section(title, metric_rows(*sides), ["", run.name, other.name])
    lines = list(islice(source_diff(run, other), DIFF_LINES + 1))
    if lines:
        print("\nsource of own parts", *lines[:DIFF_LINES], sep="\n")
    if len(lines) > DIFF_LINES:
        folders = shlex.join(["diff", "-ru", *(str(record.path / FOLDER) for record in (run, other))])
        print(printable(f"... the first {DIFF_LINES} lines; {folders} shows all"))
    if same := [title for title, values in sections.items() if not values]:
        print(printable(f"the same: {', '.join(same)}"))


def show_best(options: argparse.Namespace) -> None:
    """Show the best run and its metrics, test metrics included."""
    from vitrine.compare.best_run import latest_by_configuration, luck_sentence, validation_warning

    found = select(options)
    every = best_runs(found, options.by, len(found.entries))
    metric = found.column(options.by)
    configurations = latest_by_configuration(every, metric)
    runs = [run for members in configurations for run in members]
    (run,) = best_runs(RunList(runs, []), metric)
    print_section("", [["run", str(run.path)], ["varies", run.facts.get("varies") or ""], *metric_rows(run.metrics)])
    finished = plural(sum(bool(run.metrics) for run in found.entries), "finished run")
    repeated = len(every) - len(runs)
    left_out = f"; {repeated} left out, since the same configuration and seed ran again later" if repeated else ""
    print(printable(f"selected by {metric} among {finished}{left_out}"))
    if warning := validation_warning(runs, run):
        print(printable(warning))
        return
    if luck := luck_sentence(configurations, run, metric, found.entries):
        print(printable(luck))
    if run not in (members := configurations[0]):
        mean = cell_text(metric, fmean(one.metrics[metric] for one in members))
        of = f"of configurations with {len(members)} runs, that of {members[0].path} has the best mean, {mean}"
        print(printable(f"this is the best single run; {of}"))


def export(options: argparse.Namespace) -> None:
    """Write every column of every run to a file, which is new or an earlier such table."""
    suffix = options.to.suffix.lower()
    check_target(options.to, [*EXPORT_MARKS], "table", EXPORT_MARKS.get(suffix, b""))
    found = select(options)
    rows = [{name: run.value(name) for name in found.columns} for run in found.entries]
    with (
        naming_failed_write(options.to),
        replacing(options.to) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        if suffix == ".json":
            json.dump(rows, file, indent=2)
        else:
            writer = csv.writer(file)
            lines = [found.columns, *(row.values() for row in rows)]
            writer.writerows([csv_cell(value) for value in line] for line in lines)
    print(f"{plural(len(rows), 'run')} written to {options.to}")


def delete(options: argparse.Namespace) -> None:
    """Delete runs after a confirmation."""
    paths = [RunRecord.open(run).path for run in options.runs]
    paths = list({path.parent.resolve() / path.name: path for path in paths}.values())  # RUN/ is RUN
    records = [RunRecord(path) for path in paths]
    for record in records:
        if record.path.is_symlink():
            print(printable(f"{record.path}  a link to {record.path.readlink()}, which stays"))
            continue
        size = sum(path.lstat().st_size for path in record.path.rglob("*") if not path.is_dir())
        print(printable(f"{record.path}  {record.status}, {file_size(size)}"))
    if not options.yes:
        if not sys.stdin.isatty():
            raise RunError("not interactive: pass --yes to delete; nothing was deleted")
        try:
            answer = input(f"delete {plural(len(records), 'run')}? [y/N] ")
        except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
            answer = ""
            print()
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return
    remove_runs(paths, force=options.force)
    print(f"{plural(len(records), 'run')} deleted")


def select(options: argparse.Namespace) -> RunList:
    """Return the runs that match the folders and filters; report run folders that cannot be read."""
    folders = [text for text in options.filters if not FILTER.fullmatch(text) or Path(text).is_dir()]
    if not folders and not Path("outputs").is_dir():
        raise RunError(f"there is no folder outputs here; give one, or train a run: {program('train')} model=vit_tiny")
    found = find_runs(folders or ["outputs"])
    for run in found.unreadable:
        report(one_line(f"skipped {run.path}: {run.problem}"))
    if found.unreadable:
        report(f"{plural(len(found.unreadable), 'run')} skipped")
    for text in options.filters:
        if text not in folders and found.entries and (parts := FILTER.fullmatch(text)):
            column, sign, values = parts.groups()
            if sign in OTHER_SIGNS:
                hint = did_you_mean(OTHER_SIGNS[sign])
                raise RunError(f"{text}: {sign} is not one of =, {', '.join(COMPARISONS)}{hint}")
            found = found.compared(column, sign, values) if sign in COMPARISONS else found.where(column, values)
    return found if options.since is None else found.since(options.since)


def csv_cell(value: Any) -> Any:
    """Return a value for a cell of a .csv file: numbers as they are, and no text that a spreadsheet would compute."""
    if isinstance(value, list | dict):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    return without_formula(printable(value))


def metric_rows(*sides: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each name, with the values of each side as text; metrics of classes share one for each stage."""
    from vitrine.config.metrics import by_class, is_of_a_class  # imports OmegaConf, which a list of runs does not need

    names = dict.fromkeys(name for side in sides for name in side)
    rows = [[name, *(cell_text(name, side.get(name)) for side in sides)] for name in names if not is_of_a_class(name)]
    for stage in dict.fromkeys(name.partition("/")[0] for name in names if is_of_a_class(name)):
        rows.append([f"{stage} by class", *(", ".join(by_class(side, stage, 4)) or "-" for side in sides)])
    return rows


def with_whole_classes(
    differing: Mapping[str, Any], metrics: Mapping[str, float], others: Mapping[str, float]
) -> dict[str, tuple[Any, Any]]:
    """Return the metrics that differ with all metrics of each class of which one differs, with both values."""
    classes = {class_of(name) for name in differing} - {None}
    names = [name for name in {**metrics, **others} if name in differing or class_of(name) in classes]
    return {name: (metrics.get(name), others.get(name)) for name in names}


def class_of(name: str) -> tuple[str, str] | None:
    """Return stage and class of a metric of one class: ``("test", "cat")`` of ``test/class_acc_low/cat``."""
    from vitrine.config.metrics import is_of_a_class  # imports OmegaConf

    if not is_of_a_class(name):
        return None
    stage, _, found = name.split("/", 2)
    return stage, found


def cell_text(name: str, value: Any) -> str:
    """Return a value of a column as text."""
    if value is None:
        return "-"
    if name == "train_seconds" and math.isfinite(value):
        return clock(value)
    if name in ("started", "ended"):
        with suppress(ValueError, OverflowError):
            value = datetime.fromisoformat(str(value)).astimezone().isoformat()
        return str(value)[:16].replace("T", " ")
    if isinstance(value, float):
        has_four_digits = "/" in name and (value == 0 or abs(value) >= 0.001)  # metrics of a stage, as test/macro_f1
        return f"{value:.4f}" if has_four_digits else f"{value:g}"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, dict):  # such as images of each split
        return ", ".join(f"{key} {part:,}" if isinstance(part, int) else f"{key} {part}" for key, part in value.items())
    return as_override(value)
