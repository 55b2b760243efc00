"""Break runs on purpose, with real commands on this machine's file system, and write what happened to a page.

python benchmarks/faults.py                      # every fault that has no result yet, about 50 minutes on two cores
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
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import attacks  # noqa: F401  registers faults, too
from lab import FAULTS, SMALL, Fault, Lab, Skipped, facts, fault, flip, kill, needs, result, wait_for
from pages import markdown_table, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
COLUMNS = ["fault", "what was done", "what happened", "test"]

SWEEP = ["-m", "seed=0,1", "patch=2,4"]
LEASE = 120  # seconds without a sign of life after which a process on another machine counts as dead
SEARCH = ["-m", "sweep.sampler=tpe", "sweep.n_trials=3", "optimizer.lr=interval(1e-3,1e-2)"]


@fault("kills", "tests/training/test_resume.py::test_a_killed_run_resumes_from_its_last_epoch")
def kills(lab: Lab) -> str:
    """`kill -9` at 100 or more random moments of runs, sweeps and searches, then the same command or `resume=RUN`."""
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
        name, rounds, longest = f"{kind}-{rounds}", rounds + 1, max(3, durations[kind])
        while True:
            again = lab.runs(name) if kind == "run" else []
            words = [f"resume={again[0]}"] if again else [*SMALL, "trainer.max_epochs=4", f"paths.output_dir={name}"]
            process = lab.start(*words, *commands[kind])
            try:
                _, err = process.communicate(timeout=chance.uniform(1, longest))
                break
            except subprocess.TimeoutExpired:
                kill(process)
                process.communicate()
                count += 1
                longest *= 1.1  # a machine that has become slower lets it end, too
        assert process.returncode == 0, f"{name}: {err}"
        assert (found := sorted(str(result(run)) for run in lab.runs(name))) == expected[kind], f"{name}: {found}"
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
    return f"the second ends: `{second.line}`; the first trains on"


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
    return f"resumed from `previous.ckpt`, the damaged file kept beside it: `{ended.line_about('last.ckpt')}`"


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
    return f"refused, nothing is changed: `{ended.line}`"


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
    return f"taken over and finished in {seconds_to_take_over(lab, away):.0f} s"


@fault(
    "other-machine",
    "tests/runs/test_lock.py::test_a_holder_on_another_machine_is_watched_and_taken_over_when_its_lease_is_over",
)
def other_machine(lab: Lab) -> str:
    """The same on another machine, whose processes cannot be looked up: another kernel and network."""
    seconds = seconds_to_take_over(lab, elsewhere(lab))
    assert seconds > LEASE, seconds
    return f"watched for {LEASE} s, then taken over and finished, in {seconds:.0f} s"


def seconds_to_take_over(lab: Lab, under: tuple[str, ...]) -> float:
    """Kill a training that runs ``under`` a command, then resume it here to its end."""
    process = lab.start(*SMALL, "paths.output_dir=out", "trainer.max_epochs=3000", under=under)
    wait_for(lambda: [run for run in lab.runs("out") if (run / "checkpoints" / "last.ckpt").exists()], process)
    kill(process)
    process.communicate()
    (run,) = lab.runs("out")
    epochs = len((run / "metrics.csv").read_text().splitlines())
    ended = lab.run(f"resume={run}", f"trainer.max_epochs={epochs}")
    assert ended.code == 0, ended.err
    return ended.seconds


@fault(
    "two-machines",
    "tests/sweeps/test_crashes.py::test_two_machines_share_a_sweep_and_one_takes_up_what_the_other_left",
)
def two_machines(lab: Lab) -> str:
    """One sweep in a shared folder from two machines at once, of which one is killed with `kill -9`."""
    words = [*SMALL, "trainer.max_epochs=12", *SWEEP, "sweep.name=s", "paths.output_dir=out"]
    other = lab.start(*words, under=elsewhere(lab))
    wait_for(lambda: list((lab.folder / "out").rglob("last.ckpt")), other)
    here = lab.start(*words)
    wait_for(lambda: len(lab.runs("out")) > 1, here)
    kill(other)
    other.communicate()
    out, err = here.communicate(timeout=900)
    assert here.returncode == 0, (out, err)
    runs = [run for run in lab.runs("out") if run.name != "s"]
    assert [facts(run)["status"] for run in runs] == ["finished"] * 4, runs
    alone = lab.run(*words[:-1], "paths.output_dir=alone")
    assert alone.code == 0, alone.err
    found, expected = (sorted(str(result(run)) for run in lab.runs(name)) for name in ("out", "alone"))
    assert found == expected
    return "the other finishes all four trials, bit-equal to those of a sweep on one machine"


def elsewhere(lab: Lab) -> tuple[str, ...]:
    """Start of a command that another machine would run: another host name, network and kernel, the same folders."""
    needs("unshare", "mount", "hostname")
    (lab.folder / "kernel").write_text("another kernel\n")
    become = f"mount --bind {lab.folder}/kernel /proc/sys/kernel/random/boot_id && hostname spot-7 && exec "
    return ("unshare", "--uts", "--net", "--mount", "sh", "-c", become + '"$@"', "sh")


@fault("divergence", "tests/training/test_divergence.py::test_the_command_exits_with_3_and_one_line", quick=True)
def divergence(lab: Lab) -> str:
    """`optimizer=sgd optimizer.lr=100 trainer.gradient_clip_val=null`."""
    words = ["optimizer=sgd", "optimizer.lr=100", "trainer.gradient_clip_val=null", "paths.output_dir=out"]
    ended = lab.train(*words)
    (run,) = lab.runs("out")
    assert (ended.code, facts(run)["status"]) == (3, "diverged"), ended
    return f"exit code 3, status `diverged`: `{ended.line}`"


@fault(
    "full-disk",
    "tests/cli/test_full_disk.py::test_a_full_disk_is_reported_in_one_line_and_with_more_room_training_resumes",
)
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
        return f"exit code {ended.code}, status `{status}`: `{ended.line}`"
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


@fault("signals", "tests/cli/test_stopping.py::test_while_it_works_and_the_run_can_be_resumed")
def signals(lab: Lab) -> str:
    """Ctrl-C, SIGTERM and SIGHUP while a run trains."""
    found = {name: stopped(lab, getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP")}
    assert all(code == 130 and seconds < 5 for code, seconds in found.values()), found
    times = ", ".join(f"{name} {seconds:.1f} s" for name, (_, seconds) in found.items())
    return f"checkpoint written, status `interrupted`, exit code 130: {times}"


@fault("start-up", "tests/cli/test_stopping.py::test_while_it_starts")
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


@fault("compiler", "tests/cli/test_stopping.py::test_while_it_works_and_the_run_can_be_resumed")
def compiler(lab: Lab) -> str:
    """Ctrl-C while the compiler is tried."""
    words = ["model=vit_tiny", "trainer.accelerator=cpu", "trainer.max_epochs=400", "paths.output_dir=out"]
    process = lab.start(*words, TORCHINDUCTOR_CACHE_DIR=str(lab.folder / "cache"))
    assert any("trying the compiler" in line for line in process.stdout), process.communicate()
    time.sleep(2)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    seconds = time.monotonic() - began
    (run,) = lab.runs("out")
    assert "Traceback" not in err, err
    assert (process.returncode, facts(run)["status"]) == (130, "interrupted")
    assert seconds < 5, seconds
    return f"status `interrupted`, exit code 130, after {seconds:.1f} s"


@fault("wandb", "tests/tracking/test_wandb_online.py::test_a_silent_server_is_waited_for_until_the_timeout")
def wandb(lab: Lab) -> str:
    """A W&B server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        words = ["logger=wandb", "paths.output_dir=out"]
        ended = lab.train(*words, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    (run,) = lab.runs("out")
    assert (ended.code, facts(run)["status"]) == (0, "finished"), ended
    kept = list((run / "wandb").glob("*-run-*"))
    assert kept, ended
    return f"trained and tested, in {ended.seconds:.0f} s; the session is kept for `wandb_sync.py`"


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
    again = lab.run(f"resume={run}", "trainer.max_epochs=2")
    assert again.code == 0, again.err
    return f"`{ended.line_about('checkpoints')}`; finished once the folder is writable"


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
    if outcome == "failed":
        happened += f"; everything is kept in {place}"
    else:
        shutil.rmtree(place, ignore_errors=True)
        happened = without_names(happened.replace(f"{place}/", ""))
    return {"outcome": outcome, "happened": happened, "seconds": round(time.monotonic() - began, 1)}


def without_names(happened: str) -> str:
    """A text without what differs each time: ``RUN`` for a run folder, and no number and host of a process."""
    happened = re.sub(r"(?:[\w-]+/)*runs/[\w-]+", "RUN", happened)
    return re.sub(r"process \d+ on [^\s,]+", "process PID on HOST", happened)


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
