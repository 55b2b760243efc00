import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from vitrine.command.compose import points
from vitrine.command.overrides import check_overrides, quote
from vitrine.command.sources import Sources, composing
from vitrine.config.keys import keys
from vitrine.config.schema import EvalConfig, TrainConfig
from vitrine.config.sweep import TrainCommand
from vitrine.errors import ConfigError, Fault

MODELS = "the choices are vit_base, vit_nano, vit_small, vit_tiny"


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
        assert argument not in sound
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
        "hydra.run.dir=folder",
        "hydra/launcher=process",
        "optimizer.lr=1e-3,2e-3",
        "seed=range(0,3)",
        "optimizer.lr=tag(log,interval(1e-4,1e-2))",
        "model.dim=choice(64,96)",
        "model=vit_nano,vit_tiny",
        "model=glob(vit_*)",
    ],
)
def test_what_hydra_can_compose_passes_as_typed(check, argument):
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
        ("image_size=32", "data.image_size"),
        ("patch_size=5", "model.patch_size"),
        ("epochs=3", "trainer.max_epochs"),
        ("ckpt_path=x", "resume"),
        ("dataset=cifar10", "data"),
        ("_target_=my_lab.parts.Net", "model"),
        ("+trainer.limit_train_batches=2", "debug.limit_batches"),
        ("nonsense=1", ""),
        ("+new.key=1", ""),
        ("qqq=1", ""),
    ],
)
def test_an_unknown_key_comes_with_the_most_similar_one(fault, typed, near):
    found = fault(typed)
    assert found.key == typed.split("=")[0].lstrip("+")
    assert found.given == ""
    assert found.problem.startswith("there is no such key")
    assert found.nearest == near


def test_an_unknown_key_of_a_section_comes_with_the_keys_of_that_section(fault):
    assert fault("loss.smoothing=1").problem == (
        "there is no such key; loss has label_smoothing, class_weights, name, class_weights_beta, gamma, ..."
    )
    assert fault("callbacks.ema.rate=1").problem == "there is no such key; callbacks.ema has decay"


@pytest.mark.parametrize("typed", ["qqq=1", "model.qqq=1", "data.size=3", "experiment=qqq", "experiment=mnist"])
def test_an_unknown_name_comes_with_five_others_at_most(fault, typed):
    found = fault(typed)
    assert found.problem.count(",") <= 5
    assert len(found.problem) < 160


def test_a_new_key_cannot_be_added_nor_one_removed(fault):
    assert "none can be added" in fault("+new.key=1").problem
    assert fault("~callbacks") == Fault(
        "~callbacks", "", "a group cannot be removed; choose another", "callbacks=default"
    )
    assert fault("~logger").nearest == "logger=csv"
    assert fault("~trainer.max_time").nearest == "trainer.max_time=null"
    assert fault("+experiment=mnist/quick").nearest == "experiment=mnist/quick"
    assert fault("model@model.x=vit_nano").key == "model@model.x"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("hydra.job.chdir=true", "hydra.run.dir=DIR"),
        ("hydra.searchpath=[file://x]", "--config-dir=DIR"),
        ("hydra.mode=MULTIRUN", "-m"),
        ("hydra.launcher.n_jobs=4", "launcher.workers=N"),
        ("hydra.sweeper.params.x=1", "sweep.space"),
        ("hydra/job_logging=disabled", "tee"),
        ("hydra.job.id=3", "hydra.sweep.subdir"),
    ],
)
def test_a_setting_of_hydra_without_effect_is_refused_with_what_works(fault, typed, named):
    assert named in fault(typed).problem


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("hydra/launcher=joblib", "hydra/launcher=process"),
        ("hydra/launcher=submitit_slurm", "hydra/launcher=slurm"),
        ("hydra/sweeper=optuna", "sweep=optuna/lr_wd"),
        ("optimizer=AdamW", "optimizer=adamw"),
        ("data=CIFAR-10", "data=cifar10"),
        ("position=RoPE", "position=rope"),
        ("depth=5", "model.depth=5"),
        ("depth=0", ""),
    ],
)
def test_a_choice_that_is_not_there_comes_with_what_vitrine_has_in_its_place(fault, typed, near):
    assert fault(typed).nearest == near


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model=vit_nan", Fault("model", "vit_nan", MODELS, "model=vit_nano")),
        ("model=vit_nano.yaml", Fault("model", "vit_nano.yaml", MODELS, "model=vit_nano")),
        ("model=xyz", Fault("model", "xyz", MODELS)),
        ("model=base", Fault("model", "base", MODELS, "model=vit_base")),
        ("model=null", Fault("model", "null", MODELS)),
        ("local=laptop", Fault("local", "laptop", "there is no file in conf/local to choose")),
        ("model=vit_nano,vit_nan", Fault("model", "vit_nan", MODELS, "model=vit_nano")),
        (
            "callbacks=[default,emma]",
            Fault(
                "callbacks",
                "emma",
                "the choices are default, early_stopping, ema",
                "callbacks=ema",
            ),
        ),
        (
            "patch=[4,8]",
            Fault(
                "patch",
                "[4,8]",
                "chooses one number; the key model.patch_size takes height and width",
                "model.patch_size=[4,8]",
            ),
        ),
        ("depth=[2,3]", Fault("depth", "[2,3]", "chooses one number; in a multirun, several are depth=2,3")),
        (
            "patch=5",
            Fault(
                "patch",
                "5",
                "the choices are 1, 2, 4, 7, 8, 14, 16; the key model.patch_size takes other numbers",
                "model.patch_size=5",
            ),
        ),
    ],
)
def test_an_unknown_choice_comes_with_the_choices_and_the_most_similar(fault, typed, expected):
    assert fault(typed) == expected


@pytest.mark.parametrize(
    ("typed", "given", "problem"),
    [
        ("model.dim=abc", "abc", "must be a whole number"),
        ("model.dim=64.5", "64.5", "must be a whole number"),
        ("seed=null", "None", "must be a whole number"),
        ("trainer.devices=two", "two", "must be a whole number, or null"),
        ("optimizer.lr=fast", "fast", "must be a number, or auto"),
        ("optimizer.lr=true", "True", "must be a number, or auto"),
        ("optimizer.lr=null", "None", "must be a number, or auto"),
        ("optimizer.weight_decay=true", "True", "must be a number"),
        ("model.class_token=maybe", "maybe", "must be true or false"),
        ("data.mean=0.5", "0.5", "must be a list of numbers, such as [0.5]"),
        ("data.mean=[a]", "['a']", "must be a list of numbers, such as [0.5]"),
        ("optimizer.betas=0.9", "0.9", "must be a list of numbers, such as [0.5], or null"),
        ("tags=word", "word", "must be a list of strings, such as [a,b]"),
        ("paths.output_dir=[a]", "['a']", "must be a string"),
        ("callbacks.ema.decay=x", "x", "must be a number"),
        ("data.image_size=[16]", "[16]", "must be a whole number, or [height,width]"),
        ("data.image_size=[16,a]", "[16,a]", "must be a whole number, or [height,width]"),
        ("data.image_size=[16,24,32]", "[16,24,32]", "must be a whole number, or [height,width]"),
        ("model.patch_size=2.5", "2.5", "must be a whole number, or [height,width]"),
        ("model.patch_size=null", "null", "must be a whole number, or [height,width]"),
    ],
)
def test_a_value_of_another_type_comes_with_the_type_it_must_have(fault, typed, given, problem):
    assert fault(typed) == Fault(typed.split("=")[0], given, problem)


@pytest.mark.parametrize("value", ["true", "[1]", "on"])
def test_a_value_for_a_section_comes_with_its_keys(fault, value):
    found = fault(f"callbacks.early_stopping={value}")
    keys = "callbacks.early_stopping.monitor, callbacks.early_stopping.patience and callbacks.early_stopping.min_delta"
    assert found.key == "callbacks.early_stopping"
    assert found.problem == f"is a section; its keys are {keys}"


def test_a_whole_section_and_null_are_left_to_hydra(check):
    typed = ["callbacks.ema=null", "callbacks.early_stopping={patience:3}"]
    assert check(*typed) == (typed, [])


def test_a_sweep_is_checked_value_by_value(check):
    sound, found = check("optimizer.lr=1e-3,fast,1e-2,slow")
    assert sound == []
    assert [one.given for one in found] == ["fast", "slow"]
    assert {one.problem for one in found} == {"must be a number, or auto"}
    _, found = check("model.dim=choice(64,wide)")
    assert [one.given for one in found] == ["wide"]


@pytest.mark.parametrize("values", ["range(0,3,0)", "range(0,1,0.0)", "shuffle(range(3,step=0))"])
@pytest.mark.parametrize("key", ["seed", "depth", "hydra.run.dir"])
def test_a_range_without_a_step_is_refused(fault, key, values):
    assert fault(f"{key}={values}") == Fault(key, values, "has a step of 0")


@pytest.mark.parametrize(
    "values", ["range(0,1e8)", "range(1e8,0,-1)", "range(0,1,1e-9)", "range(0,inf)", "shuffle(range(0,1e8))"]
)
def test_a_range_of_more_values_than_a_sweep_has_trials_is_refused(fault, values):
    problem = "has more than 100,000 values; a sweep has at most 100,000 trials"
    assert fault(f"seed={values}") == Fault("seed", values, problem)


@pytest.mark.parametrize("typed", ["nonsense", "vit_nano", "--fast"])
def test_an_override_without_an_equals_sign_comes_with_the_form(fault, typed):
    assert fault(typed) == Fault(typed, "", "is not of the form key=value")


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("a=b=c", "unexpected '='"),
        ("optimizer.lr=[1", "unexpected '[1'"),
        ("optimizer.lr=1,,2", "unexpected ','"),
        ("name={a", "unexpected '{a'"),
        ("model.=3", "unexpected '.'"),
        ("seed=1,", "unexpected end"),
        ("seed=interval(1)", "in 'interval(1)': missing a required argument: 'end'"),
    ],
)
def test_what_cannot_be_read_is_reported_in_one_line_with_a_way_to_quote(fault, typed, problem):
    way = "(quote values with special characters: 'key=\"a, b\"')"
    assert fault(typed) == Fault(typed, "", f"cannot be read: {problem} {way}")


@pytest.mark.parametrize(
    ("value", "problem", "near"),
    [
        ("intervall(1,2)", "there is no function intervall; the functions are choice, range,", "interval(1,2)"),
        ("random(1)", "there is no function random; the functions are choice, range,", ""),
        ("tag(lgo,interval(1,2))", "has the tag lgo; the one tag is log,", "tag(log,interval(1,2))"),
        ("tag(log,q,interval(1,2))", "has the tag q; the one tag is log,", ""),
        ("tag(log,choice(1,2))", "has the tag log; the one tag is log, of an interval", ""),
    ],
)
def test_an_unknown_function_or_tag_comes_with_the_known_ones(fault, value, problem, near):
    found = fault(f"optimizer.lr={value}")
    assert (found.key, found.given) == ("optimizer.lr", value)
    assert found.problem.startswith(problem)
    assert found.nearest == (near and f"optimizer.lr={near}")


def test_all_faults_are_reported_at_once_and_the_sound_overrides_kept(check):
    sound, found = check("lr=1", "model=vit_nano", "model.dim=x", "nonsense", "seed=3", "data=mnits")
    assert sound == ["model=vit_nano", "seed=3", "data=mnist"]  # the last as it is meant
    assert [one.key for one in found] == ["lr", "model.dim", "nonsense", "data"]
    assert found[-1].nearest == "data=mnist"


def test_the_command_for_evaluation_has_keys_of_its_own(check, fault):
    assert check("run=outputs/runs/a", "data_root=data", "checkpoint=10", schema=EvalConfig)[1] == []
    for key in ("rum", "ckpt_path"):
        assert fault(f"{key}=outputs", schema=EvalConfig).nearest == "run"


def test_every_key_of_the_schema_is_known_with_the_optional_sections():
    known = set(keys(TrainConfig))
    assert {"seed", "model.dim", "optimizer.betas", "callbacks.ema.decay", "logger.wandb.mode"} <= known
    assert "callbacks.ema" not in known
    assert set(keys(EvalConfig)) == {
        "run",
        "checkpoint",
        "split",
        "data_root",
        "image_size",
        "patch_size",
        "accelerator",
        "traceback",
        "trust",
        "accept_changed_data",
        "allow_changed_code",
    }


@pytest.mark.parametrize(
    ("typed", "quoted"),
    [
        ("patch=2,4", "patch='2','4'"),
        ("tags=night", "tags=['night']"),
        ("tags=[a,b]", "tags=[a,b]"),
        ("launcher.sbatch=--constraint=a100", "launcher.sbatch=['--constraint=a100']"),
        ("resume=a=b", "resume='a=b'"),
        ("like=runs/position=learned,seed=0_31f1", "like='runs/position=learned,seed=0_31f1'"),
        ("data.root=${paths.data_dir}/x", "data.root=${paths.data_dir}/x"),
        ("model.pretrained='a,b'", "model.pretrained='a,b'"),
        ("data.root=one,my other", "data.root=one,'my other'"),
        ("run=[1] a (b)", "run='[1] a (b)'"),
        ("input=bilder/käfer.png", "input='bilder/käfer.png'"),
        ("data.root=写真,b&w,c", "data.root='写真','b&w',c"),
        ("resume=a;b#1!~", "resume='a;b#1!~'"),
        ("resume=runs/a+b@2.%$*?|-_", "resume=runs/a+b@2.%$*?|-_"),
        ("hydra.run.dir=out/lr=0.1/ä", "hydra.run.dir='out/lr=0.1/ä'"),
        ("hydra.sweep.subdir=s-${seed}", "hydra.sweep.subdir=s-${seed}"),
        ("data.root=~/b&w", "data.root='/home/me/b&w'"),
        ("data.root=~/a,~/b", "data.root=/home/me/a,/home/me/b"),
        ("data.root=~nobody.there/b", "data.root=~nobody.there/b"),
        ("data.root='~/b'", "data.root='~/b'"),
        ("run=[~/a,b]", "run=['/home/me/a','b']"),
        ("optimizer.lr=1e-3", "optimizer.lr=1e-3"),
        ("name=Anna Müller", "name='Anna Müller'"),
        ("tags=[a, größe ,'ö, b']", "tags=[a,'größe','ö, b']"),
        ("data.group=choice(Größe,写真)", "data.group=choice('Größe','写真')"),
        ("name=${data.name}_ü", "name=${data.name}_ü"),
        ("loss.class_weights={Hündin: 5}", "loss.class_weights='{Hündin: 5}'"),
        ("loss.class_weights={'άλογο': 5},null", r"loss.class_weights='{\'άλογο\': 5}',null"),
        ("loss.class_weights='{Hündin: 5}'", "loss.class_weights='{Hündin: 5}'"),
    ],
)
def test_quotes_that_nobody_types_are_added(typed, quoted, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert quote([typed]) == [quoted]


def test_a_path_is_read_as_typed_whichever_characters_it_has(compose):
    paths = [f"a{chr(code)}b/{chr(code)}" for code in range(32, 127) if chr(code) not in "'\",\\"]
    for path in [*paths, "bilder/käfer", "写真"]:
        assert OverridesParser.create().parse_override(*quote([f"data.root={path}"])).value() == path
    assert compose("data=mnist", "data.root=bilder/käfer & co").data.root == "bilder/käfer & co"


def test_a_class_whose_name_has_an_umlaut_can_be_given_a_weight(compose):
    for given in ("{Hündin: 5, no: 0.5}", "{'Hündin': 5, \"no\": 0.5}"):
        config = compose(f"loss.class_weights={given}", "name=Müller", "tags=[größe]")
        assert config.loss.class_weights == {"Hündin": 5, "no": 0.5}
        assert (config.name, config.tags) == ("Müller", ["größe"])
    with pytest.raises(ConfigError, match="must be a number > 0"):
        compose("loss.class_weights={Hündin: viel}")


@pytest.mark.parametrize("function", ["choice", "sort", "shuffle"])
def test_a_function_that_lists_values_takes_letters_outside_ascii(function):
    given = ["model=vit_nano", f"loss.class_weights={function}({{Hündin: 5}},balanced)"]
    weights = [point.config.run.loss.class_weights for point in points("train", given, multirun=True)]
    assert sorted(weights, key=str) == ["balanced", {"Hündin": 5}]
    with pytest.raises(ConfigError, match="cannot vary"):
        points("train", [f"name={function}(Müller,b)"], multirun=True)


def test_a_path_with_commas_is_one_path_if_it_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b").mkdir()
    assert quote(["data.root=a,b", "data.root=a,c"]) == ["data.root='a,b'", "data.root=a,c"]
    for name in ("x=1", "x=2"):
        (tmp_path / name).mkdir()
    assert quote(["data.root=x=1,x=2"]) == ["data.root='x=1','x=2'"]


def test_a_list_of_paths_may_be_longer_than_a_path():
    many = [f"outputs/runs/{number:0100}" for number in range(50)]  # 5,700 characters, and a path has 4,096 at most
    listed = ",".join(many)
    assert quote([f"run={listed}"]) == [f"run={listed}"]
    assert quote([f"run=[{listed}]"]) == [f"run=[{','.join(map(repr, many))}]"]


def test_only_groups_whose_choices_can_be_combined_take_a_list(check):
    for group in Sources().groups:
        choices = Sources().choices(group)[:2]
        if not choices:
            continue
        sound, found = check(f"{group}=[{','.join(choices)}]", schema=TrainCommand)
        if group in ("augment", "callbacks", "debug", "experiment", "logger"):
            assert (len(sound), found) == (1, [])
        else:
            assert [fault.key for fault in found] == [group]
            assert f"{group}=[" not in "".join(sound)
    (fault,) = check("position=[learned,rope]")[1]
    problem = "takes one choice; in a multirun, one of several at a time"
    assert fault == Fault("position", "[learned,rope]", problem, "-m position=learned,rope")
