"""Facts beside each key: what the sweep, resume, comparisons and the command line read from the schema."""

from dataclasses import dataclass, field

import pytest

from vitrine.config.fields import KeyFacts, number, setting
from vitrine.config.keys import copy_values, key_facts, keys, keys_where, kind, optional_section, sections_where
from vitrine.config.model import ViTConfig
from vitrine.config.schema import SOURCES, EvalConfig, TrainConfig
from vitrine.config.sweep import TrainCommand, facts_of


@dataclass
class Server:
    address: str = "localhost"
    retries: int = number(3, ge=0, may_change_on_resume=False)
    cache: str = setting("", path=True)


@dataclass
class Schema:
    server: Server | None = setting(None, affects_result=False, may_change_on_resume=True)
    folders: Server = setting(Server, may_change_on_resume=True)
    names: list[str] = setting([])
    plain: Server = field(default_factory=Server)


def test_facts_of_a_section_hold_for_its_keys_unless_a_key_has_its_own():
    assert key_facts(Schema, "server") == KeyFacts(affects_result=False, may_change_on_resume=True)
    assert key_facts(Schema, "server.address") == key_facts(Schema, "server")
    assert key_facts(Schema, "server.retries") == KeyFacts(affects_result=False)
    assert key_facts(Schema, "server.cache") == KeyFacts(affects_result=False, may_change_on_resume=True, path=True)
    assert key_facts(Schema, "plain.address") == key_facts(Schema, "names") == KeyFacts()


def test_a_key_that_the_schema_lacks_has_the_facts_that_most_keys_have():
    assert key_facts(Schema, "nonsense") == key_facts(Schema, "names.deeper") == KeyFacts()
    assert key_facts(Schema, "server.nonsense") == key_facts(Schema, "server")


def test_a_fact_that_does_not_exist_is_refused_where_the_field_is_defined():
    with pytest.raises(TypeError, match="afects_result"):
        number(1, afects_result=False)


def test_a_mutable_default_is_not_shared():
    first, second = Schema(), Schema()
    first.names.append("a")
    assert second.names == []
    assert first.folders is not second.folders


def test_keys_and_sections_are_found_by_their_facts():
    assert keys_where(Schema, path=True) == ("server.cache", "folders.cache", "plain.cache")
    assert keys_where(Schema, affects_result=False, path=False) == ("server.address", "server.retries")
    assert sections_where(Schema, affects_result=False) == ("server",)
    assert sections_where(Schema, path=True) == keys_where(Schema, path=True)


def test_types_and_optional_sections_are_found_by_key():
    assert (kind(Schema, "server.retries"), kind(Schema, "server"), kind(Schema, "nonsense")) == (int, Server, None)
    assert optional_section(Schema, "server.retries") == "server"
    assert optional_section(Schema, "folders.retries") == optional_section(Schema, "names") == ""


def test_values_are_copied_by_key_and_a_section_that_is_null_as_a_whole():
    source, target = Schema(folders=Server("there", 5)), Schema()
    copy_values(["folders.retries"], source, target)
    assert target.folders == Server("localhost", 5)
    source.server = Server("far")
    copy_values(["server.address"], source, target)
    assert target.server == Server("far")
    copy_values(["server.retries"], Schema(), target)
    assert target.server is None


@pytest.mark.parametrize("schema", [TrainCommand, EvalConfig])
def test_every_key_has_coherent_facts(schema):
    for key in keys(schema):
        known = key_facts(schema, key)
        sources = known.affects_result if isinstance(known.affects_result, tuple) else ()
        assert set(sources) <= set(SOURCES), key
        if not known.describes_run:
            assert known.affects_result is False, f"{key} can't affect the result of a run that it doesn't describe"
        if known.path:
            assert kind(schema, key) is str, key
        if known.shared_by_trials:
            assert not known.affects("digits"), f"{key} could not be swept, though it affects results"


LOGGER = {key for key in keys(TrainConfig) if key.startswith("logger.")}
OF_THE_COMMAND = set(keys(TrainCommand)) - set(keys(TrainConfig))
PATHS = {"paths.output_dir", "paths.data_dir", "paths.cache_dir"}
DEBUG = {"debug.traceback", "debug.limit_batches", "debug.detect_anomaly", "debug.profile"}


def test_keys_without_effect_on_the_result():
    without_effect = {"name", "tags", "resume", "like", "debug.traceback", "debug.profile", "data.storage"}
    without_effect |= {
        "data.target_classes",
        "data.workers",
        "callbacks.keep_every",
        "trainer.log_every_n_steps",
        "trainer.max_time",
        *LOGGER,
        *PATHS,
    }
    assert set(keys_where(TrainConfig, affects_result=False)) == without_effect
    assert set(keys_where(TrainCommand, affects_result=False)) == without_effect | OF_THE_COMMAND
    assert not facts_of("hydra/launcher").affects("digits")
    assert not facts_of("logger").affects("digits")
    assert facts_of("patch").affects("digits")


def test_the_folder_of_ones_own_pictures_affects_the_result_that_of_a_known_data_set_does_not():
    assert facts_of("data.root").affects("imagefolder")
    assert not facts_of("data.root").affects("mnist")


def test_keys_that_trials_share():
    assert set(keys_where(TrainCommand, shared_by_trials=True)) == PATHS | {"resume"} | OF_THE_COMMAND
    for group in ("sweep", "sweep/optuna", "hydra/launcher", "hydra.run.dir", "launcher", "paths"):
        assert facts_of(group).shared_by_trials, group
    assert not facts_of("logger").shared_by_trials


def test_keys_that_may_change_on_resume():
    may_change = {"trainer.max_epochs", "trainer.max_time", "trainer.devices", "trainer.accelerator"}
    may_change |= {
        "callbacks.keep_every",
        "trainer.on_divergence",
        "trainer.compile",
        "trainer.activation_checkpointing",
        "data.root",
        "data.storage",
        "data.workers",
        "paths.cache_dir",
        "distill.teacher",
    }
    assert set(keys_where(TrainConfig, may_change_on_resume=True)) == may_change | LOGGER | DEBUG
    assert set(sections_where(TrainConfig, may_change_on_resume=True)) == may_change | {"logger", "debug"}


def test_keys_that_comparisons_leave_out_beside_those_without_effect():
    assert set(keys_where(TrainCommand, in_comparisons=False)) == {
        "seed",
        "data.fold",
        "callbacks.test_curve",
        "debug.detect_anomaly",
    }


def test_keys_about_how_a_run_was_started():
    assert set(keys_where(TrainConfig, describes_run=False)) == {"resume", "like"}


def test_keys_that_can_be_paths():
    assert set(keys_where(TrainCommand, path=True)) == PATHS | {
        "resume",
        "like",
        "model.pretrained",
        "distill.teacher",
        "data.root",
    }
    assert set(keys_where(EvalConfig, path=True)) == {"run", "data_root"}


def test_keys_in_which_a_model_may_differ_from_that_of_its_weights():
    sizes = {"image_size", "patch_size", "patch_stride", "in_channels", "num_classes"}
    dropout = {"embed", "attention", "projection", "mlp", "mlp_hidden", "patch"}
    starts = {"init", "init_options", "same_init_layers", "class_token_init", "position_init", "zero_head"}
    of_training = {"pretrained", "pretrained_new", "drop_path", "drop_path_shape", "attention_kernel"} | {
        f"{place}_dropout" for place in dropout
    }
    assert set(keys_where(ViTConfig, of_weights=False)) == sizes | starts | of_training
