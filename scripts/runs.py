"""Find runs, look at one, see what differs between two, take the best, export them, delete some.

python scripts/runs.py list                                    # all under outputs/, the newest last
python scripts/runs.py list outputs/sweeps/NAME status=finished position=rope,learned --columns seed,val/acc
python scripts/runs.py list --since 7d tags=night              # columns: facts, metrics, keys of the configuration
python scripts/runs.py show RUN
python scripts/runs.py diff RUN RUN                            # configuration, code, versions, machine, metrics
python scripts/runs.py best data=mnist --by val/acc            # the test accuracy is shown of the chosen run alone
python scripts/runs.py export --to runs.csv                    # or .json: every column
python scripts/runs.py rm RUN RUN                              # asks first; deletes all of them or none
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitrine.errors import RunError, VitrineError
from vitrine.files import replacing
from vitrine.runs import RunRecord
from vitrine.runs.diff import difference
from vitrine.runs.flatten import flat
from vitrine.runs.registry import Found, best, find, remove
from vitrine.text import clock, file_size, plural

SCREENFUL = 40  # rows that a terminal is given, unless it asks for more
COLUMNS = "path,status,started,epochs,val/acc,train_seconds,tags"
FOR_A_PERSON = ("parameters", "flops_per_image", "device", "precision", "images", "validation", "error", "like")


def main() -> None:
    """Do what was asked; a mistake ends with one message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|show|diff|best|export|rm")
    several = argparse.ArgumentParser(add_help=False)
    several.add_argument("words", nargs="*", metavar="FOLDER or COLUMN=VALUE", help="where, and which; all by default")
    several.add_argument("--since", metavar="TIME", help="started since then: 2026-01-31, or 7d, 12h, 30m ago")
    listing = commands.add_parser("list", parents=[several], help="a line for each run")
    listing.add_argument("--columns", default=COLUMNS, metavar="A,B,..", help=f"by default {COLUMNS}")
    listing.add_argument(
        "--limit", type=positive, metavar="N", help=f"the newest N; {SCREENFUL} in a terminal, else all"
    )
    listing.set_defaults(do=list_runs)
    showing = commands.add_parser("show", help="all about one run")
    showing.add_argument("run")
    showing.set_defaults(do=show)
    differing = commands.add_parser("diff", help="what differs between two runs")
    differing.add_argument("runs", nargs=2, metavar="RUN")
    differing.set_defaults(do=diff)
    choosing = commands.add_parser("best", parents=[several], help="the best finished run by a validation metric")
    choosing.add_argument("--by", default="val/acc", metavar="METRIC")
    choosing.set_defaults(do=show_best)
    exporting = commands.add_parser("export", parents=[several], help="every column of every run, as .csv or .json")
    exporting.add_argument("--to", type=Path, required=True, metavar="FILE", help="ends in .csv or .json")
    exporting.set_defaults(do=export)
    removing = commands.add_parser("rm", help="delete runs, each as a whole; asks first")
    removing.add_argument("runs", nargs="+", metavar="RUN")
    removing.add_argument("--yes", action="store_true", help="do not ask")
    removing.add_argument("--force", action="store_true", help="also what reads as running on another machine")
    removing.set_defaults(do=delete)
    options, more = parser.parse_known_args()  # words may come after flags, too
    if any(word.startswith("-") or "words" not in options for word in more):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        options.words += more
    try:
        options.do(options)
    except VitrineError as error:
        print(f"vitrine: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read has seen enough: runs.py list | head


def list_runs(options: argparse.Namespace) -> None:
    """A line for each run."""
    found = chosen(options)
    if not found.entries:
        print("no such runs")
        return
    words = options.columns.split(",")
    columns = [word if options.columns == COLUMNS else found.column(word) for word in words]
    limit = options.limit or (SCREENFUL if sys.stdout.isatty() else len(found.entries))
    table(columns, ([shown(name, one.value(name)) for name in columns] for one in found.entries[-limit:]))
    if limit < len(found.entries):
        print(f"the newest {limit} of {plural(len(found.entries), 'run')}; --limit N shows more")


def show(options: argparse.Namespace) -> None:
    """All about one run."""
    record = RunRecord.open(options.run)
    facts = record.facts
    head = {"run": record.path, "status": record.status}
    head |= {name: facts.get(name) for name in ("started", "ended", "group", "varies", "tags", "command")}
    head |= {name: facts.get(name) for name in FOR_A_PERSON}
    sections = {"": head, "code": facts.get("code") or {}, "versions": facts.get("versions") or {}}
    sections |= {"machine": facts.get("machine") or {}, "metrics": record.metrics, "config": flat(record.config)}
    for title, values in sections.items():
        section(title, [[name, shown(name, value)] for name, value in values.items() if value not in (None, [], "")])


def diff(options: argparse.Namespace) -> None:
    """What differs between two runs."""
    one, other = map(RunRecord.open, options.runs)
    sections = difference(one, other)
    for title, values in sections.items():
        if values:
            rows = [[name, shown(name, mine), shown(name, theirs)] for name, (mine, theirs) in values.items()]
            section(title, rows, ["", one.name, other.name])
    if same := [title for title, values in sections.items() if not values]:
        print(f"the same: {', '.join(same)}")


def show_best(options: argparse.Namespace) -> None:
    """The best run, with what it reached on test images."""
    found = chosen(options)
    (run,) = best(found, options.by)
    metrics = [[name, shown(name, value)] for name, value in run.metrics.items()]
    section("", [["run", str(run.path)], ["varies", run.facts.get("varies") or ""], *metrics])
    print(
        f"chosen by {found.column(options.by)} among {plural(sum(bool(one.metrics) for one in found.entries), 'run')}"
    )


def export(options: argparse.Namespace) -> None:
    """Every column of every run, in a file."""
    found = chosen(options)
    rows = [{name: one.value(name) for name in found.columns} for one in found.entries]
    if options.to.suffix not in (".csv", ".json"):
        raise RunError(f"cannot write {options.to}: its name must end in .csv or .json")
    try:
        with replacing(options.to) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            if options.to.suffix == ".json":
                json.dump(rows, file, indent=2)
            else:
                writer = csv.DictWriter(file, found.columns)
                writer.writeheader()
                writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    except OSError as error:
        raise RunError(f"cannot write {options.to}: {error.strerror}") from None
    print(f"{plural(len(rows), 'run')} written to {options.to}")


def delete(options: argparse.Namespace) -> None:
    """Delete runs, once that is certain."""
    options.runs = list(dict.fromkeys(options.runs))
    records = [RunRecord.open(run) for run in options.runs]
    for record in records:
        size = sum(path.lstat().st_size for path in record.path.rglob("*") if not path.is_dir())
        print(f"{record.path}  {record.status}, {file_size(size)}")
    if not options.yes:
        if not sys.stdin.isatty():
            raise RunError("nothing deleted: nobody is here to be asked; --yes deletes")
        if input(f"delete {plural(len(records), 'run')}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing deleted")
            return
    remove(options.runs, force=options.force)
    print(f"{plural(len(records), 'run')} deleted")


def chosen(options: argparse.Namespace) -> Found:
    """The runs that were asked for; what had to be skipped is named and counted."""
    folders = [word for word in options.words if "=" not in word or Path(word).is_dir()]
    found = find(folders or ["outputs"])
    for broken in found.broken:
        print(f"vitrine: skipped {broken.path}: {broken.problem}", file=sys.stderr)
    if found.broken:
        print(f"vitrine: {plural(len(found.broken), 'run')} skipped", file=sys.stderr)
    for word in options.words:
        if word not in folders and found.entries:
            column, _, values = word.partition("=")
            found = found.where(column, values)
    return found.since(options.since) if options.since else found


def positive(word: str) -> int:
    """A number of rows."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 1 on")
    return int(word)


def cell(value: Any) -> Any:
    """A value for one cell of a .csv file."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def shown(name: str, value: Any) -> str:
    """A value for people."""
    if value is None:
        return "-"
    if name == "train_seconds":
        return clock(value)
    if name == "started":
        return str(value)[:16].replace("T", " ")
    if isinstance(value, float):
        return f"{value:.4f}" if name.endswith(("acc", "loss")) else f"{value:g}"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return re.sub(r"\s*[\t\r\n]\s*", " ", str(value))  # a row is a line, with tabs in it


def section(title: str, rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> None:
    """A titled table, if there is anything in it."""
    if rows:
        print(f"\n{title}" if title else "", end="\n" if title else "")
        table(columns, rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Drawn in a terminal; with tabs between, one line a row, for files and pipes."""
    if not sys.stdout.isatty():
        lines = ([columns] if columns else []) + list(rows)
        print("\n".join("\t".join(line) for line in lines))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(*map(escape, columns), box=None, pad_edge=False, show_header=bool(columns))
    for row in rows:
        drawn.add_row(*map(escape, row))
    Console().print(drawn)


if __name__ == "__main__":
    main()
