"""What ``vitrine runs best`` says of the best run: its configuration, and what it owes to luck."""

import pytest

from vitrine.cli.runs import main


@pytest.fixture
def best(tmp_path, capsys):
    """The lines that ``runs best`` prints of the runs in the test's folder."""

    def printed(*arguments: str) -> list[str]:
        main(["best", str(tmp_path), *arguments])
        return capsys.readouterr().out.splitlines()

    return printed


def test_the_best_run_need_not_be_of_the_best_configuration(tmp_path, write_run, best):
    learned = [
        write_run(tmp_path, "position=learned", seed=seed, acc=acc) for seed, acc in enumerate((0.9, 0.92, 0.91))
    ]
    rope = [write_run(tmp_path, "position=rope", seed=5 + number, acc=acc) for number, acc in enumerate((0.8, 0.95))]
    lines = best()
    assert f"run\t{rope[1]}" in lines
    assert lines[-1] == (
        f"this is the best single run; of configurations with 3 runs, that of {learned[1]} has the best mean, 0.9100"
    )


def test_fresh_seeds_are_as_many_as_the_configuration_had_and_new_to_all(tmp_path, write_run, best):
    for seed, acc in enumerate((0.9, 0.91, 0.92)):
        write_run(tmp_path, "position=learned", seed=seed, acc=acc)
    for seed, acc in enumerate((0.95, 0.8, 0.81, 0.82), 5):
        write_run(tmp_path, "position=rope", seed=seed, acc=acc)
    (command,) = [line for line in best() if line.startswith("  ")]
    assert command.endswith(" seed=9,10,11,12")


def test_a_seed_that_ran_again_counts_once(tmp_path, write_run, best):
    write_run(tmp_path, seed=0, acc=0.95)
    again = write_run(tmp_path, seed=0, acc=0.9)
    lines = best()
    assert f"run\t{again}" in lines
    assert "selected by val/acc among 2 finished runs; 1 left out, since the same configuration and seed ran again" in (
        " ".join(lines)
    )
