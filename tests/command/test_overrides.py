import pytest

from vitrine.command.compose import composing
from vitrine.command.overrides import check_overrides
from vitrine.config.keys import keys
from vitrine.config.schema import EvalConfig, TrainConfig
from vitrine.errors import Fault

MODELS = "model has no option of that name; it has vit_base, vit_nano, vit_small, vit_tiny"


@pytest.fixture(scope="module")
def loader():
    with composing() as ready:
        yield ready


@pytest.fixture
def check(loader):
    def call(*arguments, schema=TrainConfig):
        return check_overrides(arguments, schema, loader)

    return call


@pytest.fixture
def fault(check):
    """The one fault of one override."""

    def call(argument, **options):
        sound, (found,) = check(argument, **options)
        assert sound == []
        return found

    return call


@pytest.mark.parametrize(
    "argument",
    [
        "model=vit_nano",
        "callbacks=[default,ema]",
        "model.dim=64",
        "++model.dim=64",
        "optimizer.lr=1",
        "optimizer.lr=1e-3",
        "optimizer.betas=[0.9,0.99]",
        "optimizer.betas=null",
        "trainer.devices=null",
        "model.class_token=false",
        "name='a b'",
        "name=5",
        "tags=[a,b]",
        "callbacks.ema.decay=0.9",
        "logger.wandb.mode=offline",
        "model.dim=${data.image_size}",
        "hydra.job.chdir=true",
        "optimizer.lr=1e-3,2e-3",
        "seed=range(0,3)",
        "model.dim=choice(64,96)",
        "model=vit_nano,vit_tiny",
        "model=glob(vit_*)",
    ],
)
def test_what_hydra_can_compose_passes_as_it_was_typed(check, argument):
    assert check(argument) == ([argument], [])


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("lr=1", "optimizer.lr"),
        ("batch_size=3", "data.batch_size"),
        ("devices=2", "trainer.devices"),
        ("modle=vit_nano", "model"),
        ("optimiser=sgd", "optimizer"),
        ("model.dmi=3", "model.dim"),
        ("optimizer.learning=3", "optimizer.lr"),
        ("+sed=1", "seed"),
        ("qqq=1", ""),
    ],
)
def test_an_unknown_key_comes_with_the_nearest_one(fault, typed, near):
    found = fault(typed)
    assert found.key == typed.split("=")[0].lstrip("+")
    assert found.given == ""
    assert found.problem.startswith("there is no such key")
    assert found.nearest == near


def test_an_unknown_key_of_a_section_comes_with_the_keys_of_that_section(fault):
    assert fault("loss.smoothing=1").problem == "there is no such key; loss has name, label_smoothing"
    assert fault("callbacks.ema.rate=1").problem == "there is no such key; callbacks.ema has decay"


def test_an_unknown_word_comes_with_every_key_and_group_of_the_top(fault):
    listed = fault("qqq=1").problem.partition("there are ")[2].split(", ")
    assert {"model", "patch", "optimizer", "seed", "resume", "experiment"} <= set(listed)
    assert listed == sorted(set(listed))
    assert not [word for word in listed if "." in word or "/" in word or word.startswith("hydra")]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model=vit_nan", Fault("model", "vit_nan", MODELS, "model=vit_nano")),
        ("model=xyz", Fault("model", "xyz", MODELS)),
        ("model=base", Fault("model", "base", MODELS, "model=vit_base")),
        ("model=null", Fault("model", "null", MODELS)),
        ("model=vit_nano,vit_nan", Fault("model", "vit_nan", MODELS, "model=vit_nano")),
        (
            "callbacks=[default,emma]",
            Fault(
                "callbacks",
                "emma",
                "callbacks has no option of that name; it has default, early_stopping, ema",
                "callbacks=ema",
            ),
        ),
    ],
)
def test_an_unknown_option_comes_with_those_that_there_are_and_the_nearest(fault, typed, expected):
    assert fault(typed) == expected


@pytest.mark.parametrize(
    ("typed", "given", "problem"),
    [
        ("model.dim=abc", "abc", "must be a whole number"),
        ("model.dim=64.5", "64.5", "must be a whole number"),
        ("seed=null", "None", "must be a whole number"),
        ("trainer.devices=two", "two", "must be a whole number, or null"),
        ("optimizer.lr=fast", "fast", "must be a number"),
        ("optimizer.lr=true", "True", "must be a number"),
        ("model.class_token=maybe", "maybe", "must be true or false"),
        ("data.mean=0.5", "0.5", "must be a list of numbers, such as [0.5]"),
        ("data.mean=[a]", "['a']", "must be a list of numbers, such as [0.5]"),
        ("optimizer.betas=0.9", "0.9", "must be a list of numbers, such as [0.5], or null"),
        ("tags=word", "word", "must be a list of words, such as [a,b]"),
        ("paths.output_dir=[a]", "['a']", "must be a word"),
        ("callbacks.ema.decay=x", "x", "must be a number"),
    ],
)
def test_a_value_of_another_type_is_told_with_the_type_it_must_have(fault, typed, given, problem):
    assert fault(typed) == Fault(typed.split("=")[0], given, problem)


def test_a_sweep_is_checked_value_by_value(check):
    sound, found = check("optimizer.lr=1e-3,fast,1e-2,slow")
    assert sound == []
    assert [(one.given, one.problem) for one in found] == [("fast", "must be a number"), ("slow", "must be a number")]
    _, found = check("model.dim=choice(64,wide)")
    assert [one.given for one in found] == ["wide"]


@pytest.mark.parametrize("typed", ["nonsense", "vit_nano", "--fast"])
def test_a_word_without_an_equals_sign_is_told_the_form(fault, typed):
    assert fault(typed) == Fault(typed, "", "is not of the form key=value")


@pytest.mark.parametrize("typed", ["a=b=c", "optimizer.lr=[1", "optimizer.lr=1,,2", "name={a"])
def test_what_cannot_be_read_is_told_in_one_line_with_a_way_to_quote(fault, typed):
    found = fault(typed)
    assert found.key == typed
    assert found.problem.startswith("cannot be read: ")
    assert "quote values" in found.problem
    assert "\n" not in found.problem


def test_all_faults_are_told_at_once_and_the_sound_overrides_kept(check):
    sound, found = check("lr=1", "model=vit_nano", "model.dim=x", "nonsense", "seed=3", "data=mnits")
    assert sound == ["model=vit_nano", "seed=3"]
    assert [one.key for one in found] == ["lr", "model.dim", "nonsense", "data"]
    assert found[-1].nearest == "data=mnist"


def test_the_command_for_evaluation_has_keys_of_its_own(check, fault):
    assert check("run=outputs/runs/a", "data_root=data", schema=EvalConfig)[1] == []
    assert fault("rum=outputs", schema=EvalConfig).nearest == "run"


def test_every_key_of_the_schema_is_known_with_the_optional_sections():
    known = set(keys(TrainConfig))
    assert {"seed", "model.dim", "optimizer.betas", "callbacks.ema.decay", "logger.wandb.mode"} <= known
    assert "callbacks.ema" not in known
    assert set(keys(EvalConfig)) == {"run", "data_root", "image_size", "patch_size", "accelerator", "traceback"}
