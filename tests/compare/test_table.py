"""Grouping of runs by configuration: columns, confounded keys, main effects, and what does not count."""

import math
import time
from dataclasses import replace

import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results, parse_overrides
from vitrine.compare.table import distinguishes, tabulate
from vitrine.config.keys import keys
from vitrine.config.sweep import TrainCommand, facts_of
from vitrine.errors import RunError
from vitrine.runs import RunRecord


def table_of(folder):
    return tabulate(load_results([folder]).runs)


def test_a_sweep_has_a_row_for_each_scheme_and_seeds_are_repetitions(sweep):
    table = table_of(sweep)
    assert table.columns == ["position"]
    assert [row.label for row in table.rows] == ["learned", "rope", "none"]
    assert [sorted(row.runs) for row in table.rows] == [[0, 1, 2]] * 3
    assert table.confounded == {}
    assert table.rows[1].values_by_seed("test/acc") == {0: 0.95, 1: 0.962, 2: 0.97}


def test_a_key_without_effect_makes_no_row(tmp_path, write_run):
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
    write_run(tmp_path, *others, "logger=tensorboard", "paths.data_dir=elsewhere", seed=1)
    table = table_of(tmp_path)
    assert table.columns == []
    assert [sorted(row.runs) for row in table.rows] == [[0, 1]]
    write_run(tmp_path, "model.drop_path=0.2", seed=0)
    assert table_of(tmp_path).columns == ["model.drop_path"]


def test_every_key_that_makes_another_trial_makes_a_row_except_seed_fold_and_monitoring():
    left_out = ("seed", "data.fold", "callbacks.test_curve", "debug.detect_anomaly")
    for key in keys(TrainCommand):
        same = not facts_of(key).affects("digits") or key in left_out
        assert distinguishes(key, "digits") != same, key


def test_the_root_of_an_image_folder_is_a_choice_and_that_of_a_known_data_set_is_not(tmp_path, write_run):
    places = (("imagefolder", "a"), ("imagefolder", "b"), ("digits", "a"), ("digits", "b"))
    for seed, (data, root) in enumerate(places):
        record = RunRecord.open(write_run(tmp_path, seed=seed))
        config = record.config
        config["data"] |= {"name": data, "root": root}
        record.write_config(config)
    table = table_of(tmp_path)
    assert [sorted(row.runs) for row in table.rows] == [[0], [1], [2, 3]]
    assert sorted(table.columns) == ["data.name", "data.root"]


def test_an_override_that_sets_several_keys_is_a_column_and_these_keys_are_confounded(tmp_path, write_run):
    for model in ("vit_nano", "vit_tiny"):
        for seed in (0, 1):
            write_run(tmp_path, f"model={model}", seed=seed, sweep="model=vit_nano,vit_tiny seed=0,1")
    table = table_of(tmp_path)
    assert table.columns == ["model"]
    assert [row.label for row in table.rows] == ["vit_nano", "vit_tiny"]
    assert table.confounded["optimizer.lr"] == ["0.003125", "0.00104167"]
    assert {"model.dim", "model.depth"} <= set(table.confounded)


def test_what_a_group_changes_is_a_note_and_confounds_nothing_that_is_crossed_with_it(tmp_path, write_run):
    for model in ("vit_nano", "vit_tiny"):
        for position in ("learned", "none"):
            write_run(
                tmp_path, f"model={model}", f"position={position}", sweep="model=vit_nano,vit_tiny", predictions=False
            )
    results = load_results([tmp_path])
    for by, notes in ((None, 1), ("model", 1), ("position", 0)):
        found = compare(results, by=by)
        changed = [note for note in found.notes if note.startswith("also changed by model: ")]
        assert len(changed) == notes, by
        assert all("model.depth (4 and 12)" in note for note in changed)
        assert not any("confounded" in caveat for caveat in found.caveats), by


def test_a_key_that_changes_along_with_another_is_confounded(tmp_path, write_run):
    for batch, drop in ((32, 0.0), (64, 0.1)):
        for position in ("learned", "none"):
            write_run(
                tmp_path,
                f"data.batch_size={batch}",
                f"position={position}",
                model={"drop_path": drop},
                predictions=False,
            )
    caveat = "changing along with data.batch_size, so confounded: model.drop_path (0 and 0.1)"
    results = load_results([tmp_path])
    for by, is_confounded in ((None, True), ("batch_size", True), ("position", False)):
        assert any(caveat in text for text in compare(results, by=by).caveats) is is_confounded, by


def test_commands_apart_may_differ_in_more_than_their_groups_set(tmp_path, write_run):
    for model in ("vit_nano", "vit_tiny"):
        write_run(tmp_path, f"model={model}")
    found = compare(load_results([tmp_path]))
    (caveat,) = [text for text in found.caveats if "confounded" in text]
    assert caveat.startswith(
        "changing along with model, so confounded unless model sets them: model.depth (4 and 12), "
    )
    assert not any("also changed" in note for note in found.notes)


@pytest.mark.parametrize("seeds_were_added", [False, True])
def test_commands_in_one_folder_may_differ_in_more_too_unless_one_trained_all_choices(
    tmp_path, write_run, seeds_were_added
):
    """Between them, a recipe in conf may have been edited."""
    first, second = "position=learned,none seed=0,1", "position=rope seed=0,1"
    commands = {("learned", 0): first, ("none", 0): first, ("rope", 0): second}
    if seeds_were_added:
        first, second = "position=learned,none,rope seed=0", "position=learned,none,rope seed=0,1"
        commands = {
            (position, seed): (first, second)[seed] for position in ("learned", "none", "rope") for seed in (0, 1)
        }
    for (position, seed), sweep in commands.items():
        drop = {"drop_path": 0.1 if position == "rope" else 0.0}
        write_run(tmp_path, f"position={position}", seed=seed, sweep=sweep, model=drop, predictions=False)
    found = compare(load_results([tmp_path]))
    caveat = "changing along with position, so confounded unless position sets it: model.drop_path (0 and 0.1)"
    assert (caveat in found.caveats) is not seeds_were_added
    assert ("also changed by position: model.drop_path (0 and 0.1)" in found.notes) is seeds_were_added


def test_without_overrides_every_differing_key_is_a_column(tmp_path, write_run):
    for model in ("vit_nano", "vit_tiny"):
        write_run(tmp_path, f"model={model}", facts={"command": "python -c ...", "varies": ""})
    table = table_of(tmp_path)
    assert {"model.dim", "model.depth", "optimizer.lr"} <= set(table.columns)
    assert table.confounded == {}


def test_an_override_in_one_command_is_compared_with_the_configuration_of_the_other(tmp_path, write_run):
    write_run(tmp_path)
    write_run(tmp_path, "position=rope", "patch=4")
    table = table_of(tmp_path)
    assert sorted(table.columns) == ["patch", "position"]
    assert [row.values["position"] for row in table.rows] == ["sincos2d", "rope"]
    assert [row.values["patch"] for row in table.rows] == ["2", "4"]
    assert table.rows[1].short_label == " · ".join(table.rows[1].values.values())


def test_numbers_that_agree_to_six_digits_are_separate_rows_told_apart(tmp_path, write_run):
    for rate in ("0.00012345678", "0.00012345679"):
        write_run(tmp_path, f"optimizer.lr={rate}", seed=0)
    assert [row.label for row in table_of(tmp_path).rows] == [
        "optimizer.lr=0.00012345678",
        "optimizer.lr=0.00012345679",
    ]
    write_run(tmp_path / "search", "optimizer.lr=0.00012345678", seed=0)
    write_run(tmp_path / "search", "optimizer.lr=0.0023456789", seed=0)
    assert [row.label for row in table_of(tmp_path / "search").rows] == [
        "optimizer.lr=0.000123457",
        "optimizer.lr=0.00234568",
    ]


def test_a_section_that_is_off_in_some_runs_is_a_difference(tmp_path, write_run):
    write_run(tmp_path)
    write_run(tmp_path, "callbacks=[default,ema]")
    assert table_of(tmp_path).columns == ["callbacks.ema.decay"]


def test_runs_with_edited_source_of_a_part_are_separate_rows(tmp_path, write_run):
    fourier, logger = "my_lab.fourier.Fourier", "my_lab.log.Log"
    for seed, source in enumerate(("0123456789abcdef", "fedcba9876543210", "0123456789abcdef")):
        parts = {fourier: source, logger: f"edited {seed}"}  # the logger is no choice of the model
        write_run(tmp_path, seed=seed, model={"position": fourier}, facts={"parts": parts})
    table = table_of(tmp_path)
    assert table.columns == [f"source of {fourier}"]
    assert [(row.label, row.seeds) for row in table.rows] == [
        (f"source of {fourier}=01234567", 2),
        (f"source of {fourier}=fedcba98", 1),
    ]


def test_cells_about_parts_that_a_run_does_not_have_are_dashes(tmp_path, write_run):
    part = "my_lab.Fourier"
    for bands, source, augment in ((None, "", {}), (4, "0", {}), (8, "0", {"p": 0.1}), (8, "1", {"p": 0.2})):
        model = {"position": part, "position_options": {"bands": bands}} if source else {}
        record = RunRecord(write_run(tmp_path, model=model, facts={"parts": {part: source} if source else {}}))
        config = record.config
        config["augment"] |= {"parts": ["my_lab.Mix"], "parts_options": {"Mix": augment}} if augment else {}
        record.write_config(config)
    rows = table_of(tmp_path).rows
    names = ["model.position", "model.position_options.bands", f"source of {part}", "augment.parts_options.Mix.p"]
    assert [[row.values[name] for name in names] for row in rows] == [
        ["sincos2d", "-", "-", "-"],
        [part, "4", "0", "-"],
        [part, "8", "0", "0.1"],
        [part, "8", "1", "0.2"],
    ]
    assert (rows[0].label, rows[0].short_label) == ("augment.parts=[], model.position=sincos2d", "[] · sincos2d")


def test_launcher_settings_make_no_column(tmp_path, write_run):
    for seed, launcher in enumerate(("process", "slurm")):
        sweep = (
            f"hydra/launcher={launcher} launcher.workers={seed} logger={launcher} like=RUN{seed} position=learned,rope"
        )
        write_run(tmp_path, "position=learned", seed=seed, sweep=sweep)
        write_run(tmp_path, "position=rope", "trainer.log_every_n_steps=7", seed=seed, sweep=sweep)
    for launcher, seed in (("process", 5), ("slurm", 6)):
        write_run(tmp_path, f"model.drop_path=0.{seed}", seed=0, sweep=f"hydra/launcher={launcher} like=RUN{seed}")
    assert sorted(table_of(tmp_path).columns) == ["model.drop_path", "position"]


def test_a_key_that_older_runs_lack_has_its_default(tmp_path, write_run):
    for seed, key in enumerate(("nothing", "norm_eps", "qk_norm")):
        config = write_run(tmp_path, seed=seed) / "config.yaml"
        config.write_text("\n".join(line for line in config.read_text().splitlines() if key not in line))
    assert [row.seeds for row in table_of(tmp_path).rows] == [3]
    write_run(tmp_path, "model.qk_norm=true")
    assert [(row.label, row.seeds) for row in table_of(tmp_path).rows] == [
        ("model.qk_norm=false", 3),
        ("model.qk_norm=true", 1),
    ]


def test_a_repeated_configuration_and_seed_counts_once_and_is_reported(tmp_path, write_run):
    first = write_run(tmp_path, seed=0, acc=0.5)
    write_run(tmp_path, seed=0, acc=0.75)
    write_run(tmp_path, seed=1, acc=0.75)
    found = compare(load_results([tmp_path]))
    assert found.summaries[0].values == [0.75, 0.75]
    assert any(str(first) in caveat and "ran again later" in caveat for caveat in found.caveats)


def test_a_main_effect_pairs_equal_seeds_and_other_values(tmp_path, write_run):
    command = "position=learned,rope patch=2,4 seed=0,1"
    for scheme, gain in (("learned", 0.0), ("rope", 0.02)):
        for patch, loss in ((2, 0.0), (4, 0.3)):
            for seed in (0, 1):
                acc = 0.9 + gain - loss + 0.01 * seed + 0.001 * (seed == patch / 4)
                write_run(tmp_path, f"position={scheme}", f"patch={patch}", seed=seed, acc=acc, sweep=command)
    table = table_of(tmp_path)
    assert table.columns == ["position", "patch"]
    assert table.rows[0].label == "position=learned, patch=2"
    effect = table.main_effect("position")
    assert [row.label for row in effect.rows] == ["learned", "rope"]
    assert set(effect.rows[0].runs) == {("2", 0), ("2", 1), ("4", 0), ("4", 1)}
    (comparison,) = compare(load_results([tmp_path]), by="position").findings.comparisons
    assert comparison.difference.paired
    assert comparison.difference.counts == (2, 2), "what a seed gave with two patch sizes is no repetition"
    assert comparison.difference.mean == pytest.approx(0.02)
    assert comparison.difference.sd == pytest.approx(0, abs=1e-12), "0.02 in the mean over patches, by both seeds"
    assert [row.label for row in table.main_effect("patch").rows] == ["patch=2", "patch=4"]


def test_a_main_effect_uses_runs_that_match_on_both_sides_and_reports_the_others(tmp_path, write_run):
    command = "position=learned,rope patch=2,4,8 seed=0,1"
    for scheme, patch, acc in (("learned", 2, 0.9), ("learned", 4, 0.6), ("rope", 2, 0.92), ("rope", 8, 0.3)):
        for seed in (0, 1):
            higher = 0.01 * seed * (patch == 2) * len(scheme)
            write_run(tmp_path, f"position={scheme}", f"patch={patch}", seed=seed, acc=acc + higher, sweep=command)
    found = compare(load_results([tmp_path]), by="position")
    (tested,) = found.findings.comparisons
    assert tested.difference.counts == (2, 2)
    assert tested.difference.mean == pytest.approx(0.02 - 0.03 / 2)
    assert any(caveat.startswith("not every combination ran with every position") for caveat in found.caveats)
    assert not found.findings.sentences, "the mean over patches 2 and 4 against that over 2 and 8"


def test_one_seed_supports_no_conclusion_about_a_main_effect(tmp_path, write_run):
    for number, position in enumerate(("learned", "rope")):
        for drop in (0.0, 0.1, 0.2, 0.3):
            acc = 0.8 + 0.05 * number - 0.1 * drop + 0.001 * (drop == 0.2)
            write_run(tmp_path, f"position={position}", acc=acc, model={"drop_path": drop}, predictions=False)
    found = compare(load_results([tmp_path]), by="position")
    (tested,) = found.findings.comparisons
    assert tested.difference.mean == pytest.approx(0.05)
    assert (tested.difference.counts, tested.verdict) == ((1, 1), "inconclusive")
    assert tested.sentences == ["rope and learned cannot be compared with 1 seed: at least 3 are needed"]
    assert math.isnan(found.summaries[0].interval.half_width)
    assert "fewer than 3 seeds, too few to estimate a mean: every row" in found.caveats


def test_a_main_effect_with_unequal_seeds_uses_values_that_ran_with_every_seed(tmp_path, write_run):
    for position, seeds, gain in (("learned", (0, 1), 0.0), ("rope", (7, 8), 0.02)):
        for seed in seeds:
            for drop in (0.0, 0.1):
                acc = 0.8 + gain - drop + 0.002 * (seed % 2)
                if (seed, drop) != (8, 0.1):
                    write_run(tmp_path, f"position={position}", seed=seed, acc=acc, model={"drop_path": drop})
    (tested,) = compare(load_results([tmp_path]), by="position").findings.comparisons
    assert (tested.difference.paired, tested.difference.counts) == (False, (2, 2))
    assert tested.difference.mean == pytest.approx(0.02)
    assert "McNemar" not in tested.sentences[1], "no two models share a seed"
    assert tested.on_images.low < 0.02 < tested.on_images.high


@pytest.mark.parametrize("name", ["rope", "position=rope", "position = rope"])
def test_a_row_is_found_by_its_label_its_value_or_both(sweep, name):
    assert table_of(sweep).row(name.replace(" ", "")).label == "rope"


def test_rows_of_equal_content_are_two_keys(sweep):
    row = table_of(sweep).rows[0]
    assert len({row, replace(row)}) == 2


def test_unknown_rows_and_columns_are_refused_with_what_exists(sweep):
    table = table_of(sweep)
    with pytest.raises(RunError, match=r"no row is called rop; rows: learned; rope; none; did you mean rope\?"):
        table.row("rop")
    with pytest.raises(RunError, match=r"do not differ in positon; they differ in position; did you mean position\?"):
        table.column("positon")
    with pytest.raises(RunError, match="cannot compare by seed"):
        table.column("seed")
    assert table.column("model.position") == "position"


def test_overrides_of_a_trial_replace_those_of_its_sweep():
    parsed = parse_overrides(
        "python train.py -m model=vit_nano 'callbacks=[default,ema]' seed=0,1", "callbacks=[default,ema],seed=1"
    )
    assert parsed == {"model": "vit_nano", "callbacks": "[default,ema]", "seed": "1"}
    assert parse_overrides("python 'unbalanced", "") == {}


def test_a_command_of_megabytes_has_no_overrides():
    began = time.perf_counter()
    assert parse_overrides("a=" + "x" * 10**7, "") == {}
    assert parse_overrides("a=1", ",a=1" * 10**6) == {}
    assert time.perf_counter() - began < 10
