"""Size, difference, latency and accuracy of an ONNX export in each dtype; writes a table to docs/exporting.md.

Run it alone on the machine: python benchmarks/timing/exports.py. It takes a minute.
"""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

import torch
from measure import (
    ROOT,
    ROUNDS,
    TIMING,
    at_commit,
    in_turn,
    markdown_table,
    measured_on,
    write_between,
    write_rounds,
)

from vitrine import compose, fit
from vitrine.inference.export import to_onnx
from vitrine.inference.export.checks import LATENCY_BATCHES, probe_pictures
from vitrine.inference.export.exporter import ExportReport, export_run
from vitrine.inference.export.formats import DTYPES, ExportRequest
from vitrine.inference.export.source import ExportSource
from vitrine.text import file_size

OUT = ROOT / "outputs" / "exports"
JSON = TIMING / "exports.json"
PAGE = ROOT / "docs" / "exporting.md"
REPEATED = 25  # rounds
RUN = ["model=vit_nano", "depth=1"]
COLUMNS = ["`--format onnx --dtype`", "file", "difference", "batch of 1: export, PyTorch"]
COLUMNS += ["batch of 64: export, PyTorch", "other predictions"]


def main() -> None:
    """Train a small model, export it in each dtype, and write what the exports' own checks found, and their times."""
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    run = fit(compose([*RUN, f"paths.output_dir={OUT}"])).run_dir
    exports, rounds = {}, {}
    for dtype in DTYPES:
        request = ExportRequest(str(run), "onnx", dtype=dtype, overwrite=True)
        report = export_run(request)
        times = timed(request, report)
        exports[dtype] = facts(report, times)
        rounds |= {f"{dtype}, batch of {batch}": values for batch, values in times.items()}
    shutil.rmtree(OUT)
    write_rounds(ROUNDS / "exports.csv", rounds)
    JSON.write_text(json.dumps({"exports": exports, **measured_on()}, indent=1) + "\n")
    write_between(PAGE, "exports", table(json.loads(JSON.read_text())))


def timed(request: ExportRequest, report: ExportReport) -> dict[int, dict[str, list[float]]]:
    """Seconds of the export and of PyTorch in each round, for each batch size."""
    source = ExportSource.load(request)
    models = {"export": to_onnx.load(report.path).run, "PyTorch": source.reference}
    times = {}
    with torch.no_grad():
        for batch in LATENCY_BATCHES:
            pictures = probe_pictures(batch, source.picture_shape)
            times[batch] = in_turn({name: partial(run, pictures) for name, run in models.items()}, rounds=REPEATED)
    return times


def facts(report: ExportReport, times: Mapping[int, Mapping[str, list[float]]]) -> dict[str, Any]:
    """What a report says, and medians of the times, for JSON."""
    cost = report.cost
    return {
        "bytes": report.size,
        "runtime": report.runtime,
        "difference": max(report.differences.values()),
        "seconds": {batch: [median(each["export"]), median(each["PyTorch"])] for batch, each in times.items()},
        "changed": None if cost is None else [cost.changed, cost.images],
    }


def table(results: dict[str, Any]) -> list[str]:
    """The table, with where it was measured."""
    rows = []
    for dtype, export in results["exports"].items():
        times = [", ".join(f"{1000 * value:.3g} ms" for value in pair) for pair in export["seconds"].values()]
        changed = "" if export["changed"] is None else "{} of {}".format(*export["changed"])
        rows.append([f"`{dtype}`", file_size(export["bytes"]), f"{export['difference']:.1e}", *times, changed])
    (runtime,) = {export["runtime"] for export in results["exports"].values()}
    about = f"`python train.py {' '.join(RUN)}`, exported and checked on one thread of {results['machine']}, {runtime}"
    each = f"Times are medians of {REPEATED} rounds in random order: `benchmarks/timing/rounds/exports.csv`."
    return [*markdown_table(COLUMNS, rows), "", f"{about}{at_commit(results)}. {each}"]


if __name__ == "__main__":
    main()
