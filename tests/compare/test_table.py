"""Runs become rows and columns: what differs and was asked for is shown, what only follows is said, the rest is not."""

import math

import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.load import gather, typed
from vitrine.compare.table import matters, tabulate
from vitrine.config.keys import keys
from vitrine.config.sweep import TrainCommand, facts_of
from vitrine.errors import RunError
from vitrine.runs import RunRecord


def table_of(folder):
    return tabulate(gather([folder]).runs)


def test_a_sweep_has_a_row_for_each_scheme_and_seeds_are_repetitions(sweep):
    table = table_of(sweep)
    assert table.columns == ["position"]
    assert [row.label for row in table.rows] == ["learned", "rope", "none"]
    assert [sorted(row.runs) for row in table.rows] == [[0, 1, 2]] * 3
    assert table.along == {}
    assert table.rows[1].measured("test/acc") == {0: 0.95, 1: 0.962, 2: 0.97}


def test_what_cannot_change_a_result_makes_no_row(tmp_path, write_run):
    others = (
        "paths.output_dir=elsewhere",
        "name=word",
        "tags=[a]",
        "trainer.log_every_n_steps=5",
        "data.storage=memory",
        "data.workers=1",
        "trainer.max_time=1h",
        "callbacks.test_curve=true",
        "debug.detect_anomaly=true",
        "debug.profile=true",
    )
    write_run(tmp_path, seed=0)
    write_run(tmp_path, *others, "logger=tensorboard", "data.root=elsewhere", seed=1)
    table = table_of(tmp_path)
    assert table.columns == []
    assert [sorted(row.runs) for row in table.rows] == [[0, 1]]
    write_run(tmp_path, "model.drop_path=0.2", seed=0)
    assert table_of(tmp_path).columns == ["model.drop_path"]


def test_every_key_that_makes_another_trial_makes_a_row_but_for_the_seed_and_what_is_only_watched():
    for key in keys(TrainCommand):
        same = not facts_of(key).affects("digits") or key in ("seed", "callbacks.test_curve", "debug.detect_anomaly")
        assert matters(key, "digits") != same, key


def test_the_folder_of_ones_own_pictures_is_a_choice_and_that_of_a_known_data_set_is_none(tmp_path, write_run):
    places = (("imagefolder", "a"), ("imagefolder", "b"), ("digits", "a"), ("digits", "b"))
    for seed, (data, root) in enumerate(places):
        record = RunRecord.open(write_run(tmp_path, seed=seed))
        config = record.config
        config["data"] |= {"name": data, "root": root}
        record.write_config(config)
    table = table_of(tmp_path)
    assert [sorted(row.runs) for row in table.rows] == [[0], [1], [2, 3]]
    assert sorted(table.columns) == ["data.name", "data.root"]


def test_a_word_that_sets_several_keys_is_one_column_and_says_what_changes_along(tmp_path, write_run):
    for model in ("vit_nano", "vit_tiny"):
        for seed in (0, 1):
            write_run(tmp_path, f"model={model}", seed=seed, sweep="model=vit_nano,vit_tiny seed=0,1")
    table = table_of(tmp_path)
    assert table.columns == ["model"]
    assert [row.label for row in table.rows] == ["vit_nano", "vit_tiny"]
    assert table.along["optimizer.lr"] == ["0.003125", "0.00104167"]
    assert {"model.dim", "model.depth"} <= set(table.along)


def test_without_words_every_differing_key_is_a_column(tmp_path, write_run):
    for model in ("vit_nano", "vit_tiny"):
        write_run(tmp_path, f"model={model}", facts={"command": "python -c ...", "varies": ""})
    table = table_of(tmp_path)
    assert {"model.dim", "model.depth", "optimizer.lr"} <= set(table.columns)
    assert table.along == {}


def test_a_value_that_only_one_command_names_is_known_from_the_configuration_of_the_other(tmp_path, write_run):
    write_run(tmp_path)
    write_run(tmp_path, "position=rope", "patch=4")
    table = table_of(tmp_path)
    assert sorted(table.columns) == ["patch", "position"]
    assert [row.values["position"] for row in table.rows] == ["sincos2d", "rope"]
    assert [row.values["patch"] for row in table.rows] == ["2", "4"]
    assert table.rows[1].brief == " · ".join(table.rows[1].values.values())


def test_a_section_that_is_off_in_some_runs_is_a_difference(tmp_path, write_run):
    write_run(tmp_path)
    write_run(tmp_path, "callbacks=[default,ema]")
    assert table_of(tmp_path).columns == ["callbacks.ema.decay"]


def test_how_a_sweep_was_launched_is_no_choice(tmp_path, write_run):
    for seed, launcher in enumerate(("process", "slurm")):
        sweep = (
            f"hydra/launcher={launcher} launcher.workers={seed} logger={launcher} like=RUN{seed} position=learned,rope"
        )
        write_run(tmp_path, "position=learned", seed=seed, sweep=sweep)
        write_run(tmp_path, "position=rope", "trainer.log_every_n_steps=7", seed=seed, sweep=sweep)
    for launcher, seed in (("process", 5), ("slurm", 6)):
        write_run(tmp_path, f"model.drop_path=0.{seed}", seed=0, sweep=f"hydra/launcher={launcher} like=RUN{seed}")
    assert sorted(table_of(tmp_path).columns) == ["model.drop_path", "position"]


def test_a_key_that_older_runs_do_not_have_makes_no_row(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    older = write_run(tmp_path, seed=1)
    lines = (older / "config.yaml").read_text().splitlines()
    (older / "config.yaml").write_text("\n".join(line for line in lines if "norm_eps" not in line))
    assert len(table_of(tmp_path).rows) == 1


def test_the_same_configuration_and_seed_again_counts_once_and_is_told(tmp_path, write_run):
    first = write_run(tmp_path, seed=0, acc=0.5)
    write_run(tmp_path, seed=0, acc=0.75)
    write_run(tmp_path, seed=1, acc=0.75)
    found = compare(gather([tmp_path]))
    assert found.summaries[0].values == [0.75, 0.75]
    assert any(str(first) in words and "ran again later" in words for words in found.caveats)


def test_a_main_effect_pairs_what_else_was_chosen_and_the_seed(tmp_path, write_run):
    command = "position=learned,rope patch=2,4 seed=0,1"
    for scheme, gain in (("learned", 0.0), ("rope", 0.02)):
        for patch, loss in ((2, 0.0), (4, 0.3)):
            for seed in (0, 1):
                acc = 0.9 + gain - loss + 0.01 * seed + 0.001 * (seed == patch / 4)
                write_run(tmp_path, f"position={scheme}", f"patch={patch}", seed=seed, acc=acc, sweep=command)
    table = table_of(tmp_path)
    assert table.columns == ["position", "patch"]
    assert table.rows[0].label == "position=learned, patch=2"
    effect = table.by("position")
    assert [row.label for row in effect.rows] == ["learned", "rope"]
    assert set(effect.rows[0].runs) == {("2", 0), ("2", 1), ("4", 0), ("4", 1)}
    (comparison,) = compare(gather([tmp_path]), by="position").findings.comparisons
    assert comparison.difference.paired
    assert comparison.difference.counts == (2, 2), "what a seed gave with two patch sizes is no repetition"
    assert comparison.difference.mean == pytest.approx(0.02)
    assert comparison.difference.spread == pytest.approx(0, abs=1e-12), "0.02 in the mean over patches, by both seeds"
    assert [row.label for row in table.by("patch").rows] == ["patch=2", "patch=4"]


def test_a_main_effect_compares_what_ran_on_both_sides_and_says_what_did_not(tmp_path, write_run):
    command = "position=learned,rope patch=2,4,8 seed=0,1"
    for scheme, patch, acc in (("learned", 2, 0.9), ("learned", 4, 0.6), ("rope", 2, 0.92), ("rope", 8, 0.3)):
        for seed in (0, 1):
            words = (f"position={scheme}", f"patch={patch}")
            write_run(tmp_path, *words, seed=seed, acc=acc + 0.01 * seed * (patch == 2) * len(scheme), sweep=command)
    found = compare(gather([tmp_path]), by="position")
    (one,) = found.findings.comparisons
    assert one.difference.counts == (2, 2)
    assert one.difference.mean == pytest.approx(0.02 - 0.03 / 2)
    assert any(words.startswith("not every combination ran with every position") for words in found.caveats)


def test_one_seed_with_many_other_choices_tells_nothing_of_a_main_effect(tmp_path, write_run):
    for number, position in enumerate(("learned", "rope")):
        for drop in (0.0, 0.1, 0.2, 0.3):
            acc = 0.8 + 0.05 * number - 0.1 * drop + 0.001 * (drop == 0.2)
            write_run(tmp_path, f"position={position}", acc=acc, model={"drop_path": drop}, predictions=False)
    found = compare(gather([tmp_path]), by="position")
    (one,) = found.findings.comparisons
    assert one.difference.mean == pytest.approx(0.05)
    assert (one.difference.counts, one.verdict) == ((1, 1), "open")
    assert one.words == ["rope and learned: no difference can be told from 1 seed; 3 at least are needed"]
    assert math.isnan(found.summaries[0].interval.half)
    assert "fewer than 3 seeds, which say little of a mean: every row" in found.caveats


def test_a_main_effect_of_other_seeds_compares_what_every_seed_ran_with(tmp_path, write_run):
    for position, seeds, gain in (("learned", (0, 1), 0.0), ("rope", (7, 8), 0.02)):
        for seed in seeds:
            for drop in (0.0, 0.1):
                acc = 0.8 + gain - drop + 0.002 * (seed % 2)
                if (seed, drop) != (8, 0.1):
                    write_run(tmp_path, f"position={position}", seed=seed, acc=acc, model={"drop_path": drop})
    (one,) = compare(gather([tmp_path]), by="position").findings.comparisons
    assert (one.difference.paired, one.difference.counts) == (False, (2, 2))
    assert one.difference.mean == pytest.approx(0.02)
    assert "McNemar" not in one.words[1], "no two models share a seed"
    assert one.on_images.low < 0.02 < one.on_images.high


@pytest.mark.parametrize("name", ["rope", "position=rope", "position = rope"])
def test_a_row_is_found_by_its_label_its_value_or_both(sweep, name):
    assert table_of(sweep).row(name.replace(" ", "")).label == "rope"


def test_unknown_rows_and_columns_name_what_there_is(sweep):
    table = table_of(sweep)
    with pytest.raises(RunError, match=r"no row is called rop; rows: learned; rope; none; did you mean rope\?"):
        table.row("rop")
    with pytest.raises(RunError, match=r"do not differ in positon; they differ in position; did you mean position\?"):
        table.column("positon")
    with pytest.raises(RunError, match="seed is what runs are repeated with"):
        table.column("seed")
    assert table.column("model.position") == "position"


def test_words_of_a_trial_stand_for_those_of_its_sweep():
    words = typed(
        "python train.py -m model=vit_nano 'callbacks=[default,ema]' seed=0,1", "callbacks=[default,ema],seed=1"
    )
    assert words == {"model": "vit_nano", "callbacks": "[default,ema]", "seed": "1"}
    assert typed("python 'unbalanced", "") == {}
