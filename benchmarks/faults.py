"""Break runs on purpose, with real commands on this machine's file system, and write what happened to a page.

python benchmarks/faults.py                      # every fault that has no result yet, about 20 minutes on two cores
python benchmarks/faults.py kills full-disk      # these
python benchmarks/faults.py --quick              # those of seconds
python benchmarks/faults.py --folder /mnt/nfs    # on another file system; writes no page
python benchmarks/faults.py --again              # all, also those with a result

A result is saved as soon as it is there, so an interrupted script continues when it is started again. To add a fault:
a function with the decorator ``fault``, which does it, asserts what must hold, and returns what happened in a sentence.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import markdown_table, write_between

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "reliability.md"
COLUMNS = ["fault", "what was done", "what happened", "test"]

SMALL = ["model=vit_nano", "depth=1", "data.batch_size=256", "trainer.compile=nothing", "trainer.accelerator=cpu"]
SWEEP = ["-m", "seed=0,1", "patch=2,4"]
SEARCH = ["-m", "sweep.sampler=tpe", "sweep.n_trials=3", "optimizer.lr=interval(1e-3,1e-2)"]


class Skipped(Exception):
    """The fault cannot be made here; the message says why."""


@dataclass(frozen=True)
class Fault:
    """A fault: its name on the command line, what is done, the test that guards it, and the function that makes it."""

    name: str
    done: str
    test: str
    quick: bool
    make: Callable[["Lab"], str]


FAULTS: dict[str, Fault] = {}


def fault(name: str, test: str, *, quick: bool = False) -> Callable[[Callable[["Lab"], str]], None]:
    """Register a function that makes a fault in a ``Lab``; its docstring says what is done."""

    def register(make: Callable[["Lab"], str]) -> None:
        FAULTS[name] = Fault(name, (make.__doc__ or "").rstrip("."), test, quick, make)

    return register


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def line(self) -> str:
        """Its error, which must be one line."""
        assert "Traceback" not in self.err, self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("vitrine: ") and "warning" not in line]
        return line


class Lab:
    """A folder to break things in, and the project's commands there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str, script: str = "train.py", under: tuple[str, ...] = (), **env: str) -> Any:
        """Start a command in a session of its own."""
        return subprocess.Popen(
            [*under, sys.executable, str(ROOT / script), *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **settings: Any) -> Ended:
        """Run a command to its end."""
        began = time.monotonic()
        process = self.start(*arguments, **settings)
        out, err = process.communicate(timeout=900)
        return Ended(process.returncode, out, err, time.monotonic() - began)

    def train(self, *words: str, epochs: int = 4, **settings: Any) -> Ended:
        """Train a small model on digits."""
        return self.run(*SMALL, f"trainer.max_epochs={epochs}", *words, **settings)

    def trained(self, name: str, *words: str, epochs: int = 4) -> Path:
        """Return the folder of a new finished run."""
        ended = self.train(f"paths.output_dir={name}", *words, epochs=epochs)
        assert ended.code == 0, ended.err
        return self.runs(name)[0]

    def runs(self, name: str) -> list[Path]:
        """Return the run folders below a folder."""
        return sorted(path.parent for path in (self.folder / name).rglob("run.json"))

    def started(self, name: str, *words: str, epochs: int = 200) -> tuple[Any, Path]:
        """Start a long training; return its process and run folder once there is a checkpoint."""
        process = self.start(*SMALL, f"paths.output_dir={name}", f"trainer.max_epochs={epochs}", *words)
        wait_for(lambda: [run for run in self.runs(name) if (run / "checkpoints" / "previous.ckpt").exists()], process)
        return process, self.runs(name)[0]


def wait_for(condition: Callable[[], object], process: Any = None, seconds: float = 120) -> None:
    """Wait until ``condition`` holds, while ``process`` runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def kill(process: Any, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process and its children."""
    os.killpg(process.pid, number)


def facts(run: Path) -> dict[str, Any]:
    """Return the content of run.json."""
    return json.loads((run / "run.json").read_text())


def result(run: Path) -> dict[str, float]:
    """Return what a run found, without its times."""
    metrics = json.loads((run / "metrics.json").read_text())
    return {name: value for name, value in metrics.items() if not name.endswith("seconds")}


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def needs(*commands: str) -> None:
    """Skip the fault unless this is root with these commands."""
    missing = [command for command in commands if shutil.which(command) is None]
    if os.geteuid() != 0 or missing:
        raise Skipped(f"needs root and {', '.join(missing or commands)}")


@fault("kills", "tests/training/test_resume.py::test_a_killed_run_resumes_from_its_last_epoch")
def kills(lab: Lab) -> str:
    """`kill -9` at 100 random moments of runs, sweeps and searches, then the same command or `resume=RUN`."""
    commands = {"run": [], "sweep": SWEEP, "search": SEARCH}
    expected, durations = {}, {}
    for kind, words in commands.items():
        ended = lab.train(f"paths.output_dir={kind}", *words)
        assert ended.code == 0, ended.err
        durations[kind] = ended.seconds
        expected[kind] = sorted(str(result(run)) for run in lab.runs(kind))
    chance, count, rounds = random.Random(0), 0, 0
    while count < 100:
        kind = list(commands)[rounds % 3]
        name, rounds = f"{kind}-{rounds}", rounds + 1
        while True:
            again = lab.runs(name) if kind == "run" else []
            words = [f"resume={again[0]}"] if again else [*SMALL, "trainer.max_epochs=4", f"paths.output_dir={name}"]
            process = lab.start(*words, *commands[kind])
            try:
                process.communicate(timeout=chance.uniform(1, max(3, durations[kind])))
                break
            except subprocess.TimeoutExpired:
                kill(process)
                process.communicate()
                count += 1
        assert process.returncode == 0, name
        assert sorted(str(result(run)) for run in lab.runs(name)) == expected[kind], name
    return f"{count} kills in {rounds} commands: every result is bit-equal to that without kills; none is lost"


@fault("two-writers", "tests/training/test_recovery.py::test_of_two_commands_that_resume_a_run_at_once_one_trains_it")
def two_writers(lab: Lab) -> str:
    """`resume=RUN` beside the process that trains the run."""
    process, run = lab.started("out")
    second = lab.run(f"resume={run}")
    assert second.code == 1, second
    assert str(process.pid) in second.line
    assert process.poll() is None
    kill(process)
    process.communicate()
    return f"the second ends: `{second.line.replace(str(run), 'RUN')}`; the first trains on"


@fault(
    "damaged-checkpoint",
    "tests/training/test_recovery.py::test_a_run_is_resumed_from_the_newest_state_that_reads_whole",
)
def damaged_checkpoint(lab: Lab) -> str:
    """One bit of `last.ckpt` flipped, then `resume=RUN`."""
    run = lab.trained("out")
    last = run / "checkpoints" / "last.ckpt"
    flip(last)
    before = set(last.parent.iterdir())
    ended = lab.run(f"resume={run}", "trainer.max_epochs=5")
    assert ended.code == 0, ended.err
    assert facts(run)["status"] == "finished"
    assert {row.split(",")[0] for row in (run / "metrics.csv").read_text().split("\n")[1:] if row} >= {"5"}
    assert len(set(last.parent.iterdir()) - before) == 1, "the damaged file is kept"
    return f"resumed from `previous.ckpt`, the damaged file kept beside it: `{ended.err.splitlines()[0][:120]}`"


@fault(
    "lost-checkpoints",
    "tests/training/test_recovery.py::test_a_trained_run_without_a_state_is_not_trained_from_the_start",
)
def lost_checkpoints(lab: Lab) -> str:
    """All checkpoints of a trained run deleted, then `resume=RUN`."""
    run = lab.trained("out")
    for path in (run / "checkpoints").glob("*.ckpt"):
        path.unlink()
    rows = (run / "metrics.csv").read_bytes()
    ended = lab.run(f"resume={run}", "trainer.max_epochs=5")
    assert ended.code == 1, ended
    assert (run / "metrics.csv").read_bytes() == rows
    return f"refused, nothing is changed: `{ended.line.replace(str(run), 'RUN')}`"


@fault(
    "changed-data",
    "tests/training/test_changed_data.py::test_resuming_on_changed_data_is_refused_and_says_what_differs",
)
def changed_data(lab: Lab) -> str:
    """Half of a class's training images deleted, then `resume=RUN`."""
    write_images(lab.folder / "images")
    data = ["data=imagefolder", "data.root=images", "data.image_size=8", "patch=4"]
    run = lab.trained("out", *data, epochs=1)
    for path in sorted((lab.folder / "images" / "train" / "a").iterdir())[:10]:
        path.unlink()
    refused = lab.run(f"resume={run}", "trainer.max_epochs=2")
    assert refused.code == 1, refused
    accepted = lab.run(f"resume={run}", "trainer.max_epochs=2", "accept_changed_data=true")
    assert accepted.code == 0, accepted.err
    assert facts(run)["data_changes"][0]["changes"]
    changes = facts(run)["data_changes"][0]["changes"][0]
    return f"refused, as {changes}; `accept_changed_data=true` goes on, and run.json records it"


@fault(
    "other-host",
    "tests/runs/test_lock.py::test_a_holder_on_another_machine_is_watched_and_taken_over_when_its_lease_is_over",
)
def other_host(lab: Lab) -> str:
    """`kill -9` on a host of another name, then `resume=RUN` here."""
    needs("unshare", "hostname")
    away = ("unshare", "-u", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh")
    process = lab.start(*SMALL, "paths.output_dir=out", "trainer.max_epochs=3000", under=away)
    wait_for(lambda: [run for run in lab.runs("out") if (run / "checkpoints" / "last.ckpt").exists()], process)
    kill(process)
    process.communicate()
    (run,) = lab.runs("out")
    epochs = len((run / "metrics.csv").read_text().splitlines())
    ended = lab.run(f"resume={run}", f"trainer.max_epochs={epochs}")
    assert ended.code == 0, ended.err
    return f"taken over and finished in {ended.seconds:.0f} s"


@fault("divergence", "tests/training/test_divergence.py::test_the_command_exits_with_3_and_one_line", quick=True)
def divergence(lab: Lab) -> str:
    """`optimizer=sgd optimizer.lr=100 trainer.gradient_clip_val=null`."""
    words = ["optimizer=sgd", "optimizer.lr=100", "trainer.gradient_clip_val=null", "paths.output_dir=out"]
    ended = lab.train(*words)
    (run,) = lab.runs("out")
    assert (ended.code, facts(run)["status"]) == (3, "diverged"), ended
    return f"exit code 3, status `diverged`: `{ended.line[:150]}`"


@fault("full-disk", "tests/cli/test_full_disk.py")
def full_disk(lab: Lab) -> str:
    """A file system with 3 MB of room."""
    needs("mount", "umount")
    disk = lab.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=True)
    try:
        ended = lab.train("paths.output_dir=disk/out", "model.dim=192", "model.depth=12", epochs=2)
        assert ended.code != 0
        status = facts(lab.runs("disk/out")[0])["status"]
        return f"exit code {ended.code}, status `{status}`: `{ended.line[:200].replace(str(lab.folder), '')}`"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def stopped(lab: Lab, number: int) -> tuple[int, float]:
    """Send a signal to a training run; return its exit code and the seconds until it ended."""
    process, run = lab.started(f"out-{number}")
    began = time.monotonic()
    os.kill(process.pid, number)
    process.communicate(timeout=60)
    assert facts(run)["status"] == "interrupted"
    return process.returncode, time.monotonic() - began


@fault("signals", "tests/training/test_resume.py::test_an_interrupted_run_resumes_bit_equal")
def signals(lab: Lab) -> str:
    """Ctrl-C, SIGTERM and SIGHUP while a run trains."""
    found = {name: stopped(lab, getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP")}
    assert all(code == 130 and seconds < 5 for code, seconds in found.values()), found
    times = ", ".join(f"{name} {seconds:.1f} s" for name, (_, seconds) in found.items())
    return f"checkpoint written, status `interrupted`, exit code 130: {times}"


@fault("start-up", "tests/sweeps/test_commands.py::test_ctrl_c_before_training_prints_one_line")
def start_up(lab: Lab) -> str:
    """Ctrl-C 0.3, 1 and 3 s after the start of a command."""
    times = []
    for seconds in (0.3, 1.0, 3.0):
        process = lab.start(*SMALL, "trainer.max_epochs=200", f"paths.output_dir=out{seconds}")
        time.sleep(seconds)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        times.append(time.monotonic() - began)
    assert max(times) < 5, times
    return f"ended in {', '.join(f'{seconds:.1f}' for seconds in times)} s"


@fault("foreign-runs", "tests/cli/test_foreign_runs.py::test_every_list_goes_on_beside_damaged_runs", quick=True)
def foreign_runs(lab: Lab) -> str:
    """Folders with a YAML bomb, 100,000 brackets, a pid of 10^30, terminal escapes, and text for an object."""
    bomb = "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n"
    good = {"status": "failed", "started": "2026-01-01T00:00:00+00:00"}
    records = {"sound": json.dumps(good), "brackets": "[" * 100_000, "code": json.dumps(good | {"code": "str"})}
    records |= {
        "pid": json.dumps(good | {"pid": 10**30}),
        "escape": json.dumps(good | {"tags": ["\x1b[31m"]}),
        "bomb": records["sound"],
    }
    for name, text in records.items():
        (lab.folder / "out" / name).mkdir(parents=True)
        (lab.folder / "out" / name / "run.json").write_text(text)
    (lab.folder / "out" / "bomb" / "config.yaml").write_text(bomb)
    ended = lab.run("list", "out", script="scripts/runs.py")
    assert ended.code == 0, ended
    assert "out/sound" in ended.out
    assert "\x1b" not in ended.out + ended.err
    assert "4 runs skipped" in ended.err, ended.err
    return "the sound one is listed, escapes as text; one line for each of the other four"


@fault("read-only", "tests/benchmarks/test_faults.py::test_a_quick_fault_has_the_expected_outcome", quick=True)
def read_only(lab: Lab) -> str:
    """`chattr +i` on the folder of the checkpoints, then `resume=RUN`."""
    needs("chattr")
    run = lab.trained("out", epochs=1)
    if subprocess.run(["chattr", "+i", str(run / "checkpoints")], check=False, capture_output=True).returncode:
        raise Skipped("chattr +i is not for this file system")
    try:
        ended = lab.run(f"resume={run}", "trainer.max_epochs=2")
    finally:
        subprocess.run(["chattr", "-i", str(run / "checkpoints")], check=True)
    assert ended.code != 0
    line = ended.line.replace(str(run), "RUN")
    again = lab.run(f"resume={run}", "trainer.max_epochs=2")
    assert again.code == 0, again.err
    return f"`{line[:160]}`; finished once the folder is writable"


@fault("clock", "tests/runs/test_lock.py::test_no_clock_but_the_watchers_own_counts", quick=True)
def clock(lab: Lab) -> str:
    """The system's clock set back by an hour in mid-training."""
    (lab.folder / "sitecustomize.py").write_text(CLOCK)
    ended = lab.train(
        "paths.output_dir=out", "trainer.max_time=30m", PYTHONPATH=f"{lab.folder}:{os.environ.get('PYTHONPATH', '')}"
    )
    assert ended.code == 0, ended.err
    shifted, straight = lab.runs("out")[0], lab.trained("whole")
    assert result(shifted) == result(straight)
    seconds = [float(row.split(",")[2]) for row in (shifted / "metrics.csv").read_text().split()[1:]]
    assert seconds == sorted(seconds), seconds
    return "the run finishes with the same result; its times only grow"


CLOCK = """
import time
real, began = time.time, time.monotonic()
time.time = lambda: real() - (3600 if time.monotonic() - began > 8 else 0)
"""


@fault("litter", "tests/test_files.py::test_what_killed_writers_left_is_removed_and_nothing_else")
def litter(lab: Lab) -> str:
    """Temporary files of killed writers in a run folder, then `resume=RUN`."""
    run = lab.trained("out", epochs=1)
    left = [run / ".run.json.abc.tmp", run / "checkpoints" / ".last.ckpt.abc.tmp"]
    for path in left:
        path.write_text("x")
    ended = lab.run(f"resume={run}", "trainer.max_epochs=2")
    assert ended.code == 0, ended.err
    assert not any(path.exists() for path in left)
    return "they are removed"


def write_images(root: Path) -> None:
    """Write 20 noisy images for each of two classes in each split."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for label in "ab":
            (root / split / label).mkdir(parents=True)
            for index in range(20):
                pixels = generator.integers(0, 256, (8, 8, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / label / f"{index}.png")


def make(chosen: Fault, folder: Path) -> dict[str, Any]:
    """Make a fault in a new folder; return what happened."""
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix=f"faults-{chosen.name}-", dir=folder))
    try:
        outcome, happened = "as expected", chosen.make(Lab(place))
    except Skipped as skipped:
        outcome, happened = "not made", f"not made here: {skipped}"
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
        outcome, happened = "failed", f"**{type(error).__name__}**: {str(error)[-400:]}"
    shutil.rmtree(place, ignore_errors=True)
    happened = happened.replace(f"{place}/", "")
    return {"outcome": outcome, "happened": happened, "seconds": round(time.monotonic() - began, 1)}


def write_page(results: dict[str, Any]) -> None:
    """Write the table of docs/reliability.md."""
    rows = [
        [name, known.done, results[name]["happened"].replace("|", "\\|").replace("\n", " "), f"`{known.test}`"]
        for name, known in FAULTS.items()
        if name in results
    ]
    write_between(PAGE, "faults", markdown_table(COLUMNS, rows))


def main() -> None:
    """Make the faults that are asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*FAULTS, []], metavar="NAME", help=", ".join(FAULTS))
    parser.add_argument("--quick", action="store_true", help="only those of seconds")
    parser.add_argument("--again", action="store_true", help="also those with a result")
    parser.add_argument("--folder", type=Path, help="where to make them; results are only printed")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = [known for known in FAULTS.values() if known.name in (options.names or FAULTS)]
    for known in chosen:
        done = results.get(known.name, {}).get("outcome") == "as expected"
        if (options.quick and not known.quick) or (done and not (options.again or options.names or options.folder)):
            continue
        print(f"{known.name}: {known.done}", flush=True)
        found = make(known, options.folder or Path(tempfile.gettempdir()))
        print(f"    {found['outcome']}, {found['seconds']:.0f} s: {found['happened']}", flush=True)
        if options.folder is None:
            results[known.name] = found
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            write_page(results)


if __name__ == "__main__":
    main()
