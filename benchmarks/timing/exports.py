"""Size, difference, latency and accuracy of an ONNX export in each dtype; writes a table to docs/exporting.md.

Run it alone on the machine: python benchmarks/timing/exports.py. It takes half a minute.
"""

import json
import shutil
from typing import Any

import torch
from measure import ROOT, TIMING, at_commit, markdown_table, measured_on, write_between

from vitrine import compose, fit
from vitrine.inference.export.exporter import ExportReport, export_run
from vitrine.inference.export.formats import DTYPES, ExportRequest
from vitrine.text import file_size

OUT = ROOT / "outputs" / "exports"
JSON = TIMING / "exports.json"
PAGE = ROOT / "docs" / "exporting.md"
RUN = ["model=vit_nano", "depth=1"]
COLUMNS = ["`--format onnx --dtype`", "file", "difference", "batch of 1: export, PyTorch"]
COLUMNS += ["batch of 64: export, PyTorch", "other predictions"]


def main() -> None:
    """Train a small model, export it in each dtype, and write what the exports' own checks found."""
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    run = fit(compose([*RUN, f"paths.output_dir={OUT}"])).run_dir
    exports = {
        dtype: facts(export_run(ExportRequest(str(run), "onnx", dtype=dtype, overwrite=True))) for dtype in DTYPES
    }
    shutil.rmtree(OUT)
    JSON.write_text(json.dumps({"exports": exports, **measured_on()}, indent=1) + "\n")
    write_between(PAGE, "exports", table(json.loads(JSON.read_text())))


def facts(report: ExportReport) -> dict[str, Any]:
    """What a report says, for JSON."""
    cost = report.cost
    return {
        "bytes": report.size,
        "runtime": report.runtime,
        "difference": max(report.differences.values()),
        "seconds": {latency.batch: [latency.exported, latency.pytorch] for latency in report.latencies},
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
    return [*markdown_table(COLUMNS, rows), "", f"{about}{at_commit(results)}."]


if __name__ == "__main__":
    main()
