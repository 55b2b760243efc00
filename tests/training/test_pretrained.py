"""Weights to start from: published ones by timm's names, from the hub's cache or a file, and those of another run."""

import dataclasses
import json
import shutil
import zipfile
from copy import deepcopy

import pytest
import timm
import torch
from helpers.bombs import let_entries_overlap
from helpers.published import PUBLISHED
from helpers.running import SMALL, only_run, write_image_folder
from helpers.user_parts import enter_lab
from safetensors.torch import save_file
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmViT

from vitrine import compose, fit, resume
from vitrine.config.model import POSITIONS, ViTConfig
from vitrine.config.serialize import to_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.errors import ConfigError, RunError
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord
from vitrine.training import stored_weights
from vitrine.training.changed_data import data_facts
from vitrine.training.pretrained import Pretrained
from vitrine.training.stored_weights import StoredWeights, under_our_names

SIZES = {"image_size": 16, "patch_size": 4, "in_channels": 3, "num_classes": 7, "dim": 24, "depth": 2, "heads": 3}
SIZES |= PUBLISHED


TIMM_SIZES = {"img_size": 16, "patch_size": 4, "num_classes": 7, "embed_dim": 24, "depth": 2, "num_heads": 3}


def published(**changes):
    torch.manual_seed(0)
    return TimmViT(**(TIMM_SIZES | changes)).eval()


@pytest.fixture
def saved(tmp_path):
    def save(model, name="weights.safetensors"):
        path = tmp_path / name
        weights = {key: value.contiguous() for key, value in model.state_dict().items()}
        if name.endswith(".safetensors"):
            save_file(weights, path)
        else:
            torch.save(weights, path)
        return str(path)

    return save


def started(source, **changes):
    config = ViTConfig(**(SIZES | changes), pretrained=source)
    model = VisionTransformer(config).eval()
    start = Pretrained.prepare(config)
    start.copy_to(model)
    return model, start.changes


def images(size=16, channels=3):
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def test_the_head_is_new_where_any_target_is_another_or_has_other_classes():
    def kept(trained, **targets):
        run = Pretrained("run", {"head.weight": torch.zeros(5, 8)}, [], list(trained.items()))
        split = Split(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, 2, dtype=torch.int64))
        start = run.for_classes_of(ImageDataset(["ant", "bee", "cat"], split, None, None, targets=targets))
        change = f"new head for {sum(map(len, targets.values()))} classes: that of the weights is for others"
        assert start.changes == ([] if start.weights else [change])
        return bool(start.weights)

    both = {"animal": ["ant", "bee", "b\u00e4r"], "place": ["home", "park"]}
    assert kept(both, **both)
    assert kept(both, animal=["ant", "bee", "ba\u0308r"], place=["home", "park"]), "in another form of Unicode"
    assert not kept(both, animal=["ant", "bee", "b\u00e4r"], place=["lake", "moon"])
    assert not kept(both, animal=["ant", "bee", "cow"], place=["home", "park"])
    assert not kept(both, animal=["ant", "bee", "b\u00e4r"], sky=["home", "park"])
    assert kept({"old": ["no", "yes"], "large": ["no", "yes"]}, old=["no", "yes"], large=["no", "yes"])
    assert kept({"": ["no", "yes"]}, old=["no", "yes"]), "one side does not name its target"
    assert not kept({"new": ["no", "yes"]}, old=["no", "yes"])
    assert not kept({"old": ["no", "yes"], "large": ["no", "yes"]}, large=["no", "yes"], old=["no", "yes"])


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ([], None),
        (["data.hold_out=false"], None),
        (["data.val_seed=3"], "data.val_seed=0 validates on images that it was not trained on"),
        (["data.root=moved", "data.val_seed=3"], "data.val_seed=0 validates on images that it was not trained on"),
        (["data.root=others", "data.val_seed=3"], None),
        (["more"], "give the data a validation split of its own"),
        (["trained on all"], "give the data a validation split of its own"),
    ],
)
def test_validation_images_that_the_weights_were_trained_on_are_reported(tmp_path, monkeypatch, changes, hint):
    monkeypatch.chdir(tmp_path)
    for folder in ("pictures", "moved", "others"):
        write_image_folder(tmp_path / folder, classes=("a", "b" if folder == "others" else "c"))

    def data(*overrides):
        given = ["data=imagefolder", "data.root=pictures", "data.image_size=8", "patch=4", "data.storage=disk"]
        return ImageDataModule(compose([*SMALL, *given, *overrides]))

    record, trained = RunRecord.create(tmp_path, "run"), data(*["data.hold_out=false"] * ("trained on all" in changes))
    record.write_config(to_plain(trained.config))
    record.update(**data_facts(trained))
    if "more" in changes:
        shutil.copy("pictures/train/a/0.png", "pictures/train/a/20.png")
    warning = Pretrained("R", {}, [], record=record).leakage(data(*(change for change in changes if "=" in change)))
    problem = "was trained on this data: validation images may be among its training images, and val/acc too high"
    assert warning == (f"warning: model.pretrained=R {problem}; {hint}" if hint else "")


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth", "weights.bin"])
def test_weights_from_a_file_give_the_published_models_logits(saved, name):
    theirs = published()
    model, changes = started(saved(theirs, name))
    assert changes == []
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_bare_weights_of_each_positional_scheme_start_a_model_of_that_scheme(saved, position):
    theirs = VisionTransformer(ViTConfig(**SIZES | {"position": position})).eval()
    model, changes = started(saved(theirs), position=position)
    assert changes == []
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=0)


@pytest.mark.parametrize(
    "wrap", [{"state_dict": ""}, {"model": ""}, {"state_dict": "module."}, {"model": "_orig_mod."}]
)
def test_wrappers_of_training_scripts_are_removed(tmp_path, wrap):
    theirs = published()
    ((key, prefix),) = wrap.items()
    weights = {f"{prefix}{name}": value for name, value in theirs.state_dict().items()}
    torch.save({key: weights, "epoch": 3}, tmp_path / "w.pth")
    model, _ = started(str(tmp_path / "w.pth"))
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)


def test_another_number_of_classes_gets_a_new_head_and_keeps_the_rest(saved):
    theirs = published(num_classes=1000)
    model, changes = started(saved(theirs))
    assert changes == ["new head for 7 classes"]
    assert model.head.weight.shape == (7, 24)
    torch.testing.assert_close(model.forward_features(images()), theirs.forward_features(images()), rtol=0, atol=1e-5)


def test_another_image_size_gives_what_timm_gives_with_dynamic_sizes(saved):
    theirs = published(dynamic_img_size=True)
    model, changes = started(saved(theirs), image_size=32)
    assert changes == ["positions resized from 4x4 to 8x8"]
    torch.testing.assert_close(model(images(32)), theirs(images(32)), rtol=0, atol=1e-5)


def test_larger_patches_of_larger_images_give_nearly_what_small_ones_gave(saved):
    theirs = published()
    model, changes = started(saved(theirs), image_size=32, patch_size=8)
    assert changes == ["patches resized from 4x4 to 8x8"]
    small = images()
    blocks = small.unflatten(2, (4, 4)).unflatten(4, (4, 4)).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)  # patch by patch
    large = torch.nn.functional.interpolate(blocks, size=(8, 8), mode="bicubic", antialias=True)
    large = large.unflatten(0, (2, 4, 4)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    torch.testing.assert_close(model(large), theirs(small), rtol=0, atol=1e-4)


def test_summed_colour_filters_give_the_same_outputs_on_grey_images(saved):
    theirs = published()
    model, changes = started(saved(theirs), in_channels=1)
    assert changes == ["filters of 3 colours summed for grey images"]
    grey = images(channels=1)
    torch.testing.assert_close(model(grey), theirs(grey.expand(-1, 3, -1, -1)), rtol=0, atol=1e-5)


def test_positions_published_without_a_class_token_leave_it_unchanged(saved):
    theirs = published(no_embed_class=True, reg_tokens=2)
    model, changes = started(saved(theirs), registers=2)
    assert changes == []
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)


def test_a_file_with_vectors_of_rows_and_columns_is_resized_from_the_grid_that_it_has(saved):
    rows_and_columns = {"position": "learned2d", "class_token": False, "pool": "mean"}
    larger = VisionTransformer(ViTConfig(**(SIZES | {"image_size": 32} | rows_and_columns))).eval()
    model, changes = started(saved(larger), **rows_and_columns)
    assert changes == ["positions resized from 8x8 to 4x4"]
    assert model.pos_embed.shape == (2, 4, 24)
    oblong = VisionTransformer(ViTConfig(**(SIZES | {"image_size": [8, 24]} | rows_and_columns))).eval()
    same, changes = started(saved(oblong), image_size=[8, 24], **rows_and_columns)
    assert changes == []
    assert torch.equal(same.pos_embed, oblong.pos_embed)
    with pytest.raises(RunError, match="the positions of 8 rows and columns are not those of the model's grid, 4x4, a"):
        started(saved(oblong), **rows_and_columns)


def rotary(rope_type, **changes):
    torch.manual_seed(0)
    rope = {
        "attn_type": "rope",
        "use_abs_pos_emb": False,
        "use_rot_pos_emb": True,
        "rope_grid_indexing": "xy",
        "rope_temperature": {"cat": 100.0, "mixed": 10.0}[rope_type],
        "rope_type": rope_type,
    }
    return Eva(**(TIMM_SIZES | rope | {"init_values": 1e-1, "global_pool": "token"} | changes)).eval()


def test_parameters_of_timms_rope_models_are_renamed(saved):
    theirs = rotary("mixed")
    model, changes = started(saved(theirs), position="rope_mixed", layer_scale=0.5)
    assert changes == []
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)


NAME = "vit_base_patch16_224.augreg_in21k"


@pytest.fixture
def from_hub(monkeypatch):
    """Starts from a model as if timm's hub had it, with large weights, whose differences show."""

    def start(theirs, **changes):
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                weight.mul_(10 if name.endswith(("qkv.weight", "fc1.weight", "fc2.weight")) else 1)
        found = StoredWeights(theirs.state_dict(), timm=deepcopy(theirs))
        monkeypatch.setattr(stored_weights, "_from_hub", lambda name: found)
        return started(NAME, **changes)

    return start


@pytest.mark.parametrize(
    ("theirs", "changes"),
    [
        (published, {}),
        (published, {"image_size": 32, "patch_size": 8, "in_channels": 1, "num_classes": 3}),
        (lambda: published(act_layer="relu"), {"mlp": "relu"}),
        (lambda: rotary("cat"), {"position": "rope", "layer_scale": 0.5}),
        (lambda: rotary("mixed"), {"position": "rope_mixed", "layer_scale": 0.5}),
    ],
    ids=["itself", "resized", "relu", "rope", "rope_mixed"],
)
def test_weights_of_the_hub_are_taken_by_a_model_that_computes_the_same(from_hub, theirs, changes):
    assert from_hub(theirs(), **changes)


@pytest.mark.parametrize(
    ("theirs", "changes", "key", "near"),
    [
        (lambda: published(num_heads=4), {}, "model.heads", "model.heads=4"),
        (lambda: published(act_layer="relu"), {}, "model.mlp", "model.mlp=relu"),
        (lambda: published(act_layer="quick_gelu"), {}, "model.pretrained", ""),
        (lambda: rotary("cat"), {"position": "none", "layer_scale": 0.5}, "model.position", "model.position=rope"),
        (lambda: rotary("cat", use_abs_pos_emb=True), {"layer_scale": 0.5}, "model.pretrained", ""),
    ],
    ids=["heads", "relu", "quick_gelu", "rope", "rope and table"],
)
def test_weights_of_the_hub_with_which_the_model_would_compute_something_else_are_refused(
    from_hub, theirs, changes, key, near
):
    with pytest.raises(ConfigError) as refusal:
        from_hub(theirs(), **changes)
    (fault,) = refusal.value.faults
    assert (fault.key, fault.nearest) == (key, near)


def test_another_architecture_is_refused_with_every_setting_that_would_fit(saved):
    source = saved(published(depth=3, reg_tokens=4, init_values=1e-5, qk_norm=True, mlp_ratio=2.0))
    with pytest.raises(ConfigError) as refusal:
        started(source, position="sincos2d", dim=48)
    assert {fault.nearest for fault in refusal.value.faults} == {
        "model.dim=24",
        "model.depth=3",
        "model.registers=4",
        "model.layer_scale=1e-05",
        "model.qk_norm=true",
        "model.mlp_ratio=2.0",
        "model.position=learned",
    }


def test_the_settings_that_are_suggested_fit(saved):
    theirs = published(class_token=False, global_pool="avg", fc_norm=False, mlp_ratio=2.0)
    source = saved(theirs)
    with pytest.raises(ConfigError) as refusal:
        started(source)
    suggested = dict(fault.nearest.removeprefix("model.").split("=") for fault in refusal.value.faults)
    assert suggested == {"class_token": "false", "pool": "mean", "mlp_ratio": "2.0"}
    model, _ = started(source, class_token=False, pool="mean", mlp_ratio=2.0)
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (lambda: published(class_token=False, global_pool="avg"), "a norm after the pool, fc_norm"),
        (lambda: VisionTransformerDistilled(**TIMM_SIZES), "a distillation token, dist_token"),
    ],
)
def test_what_no_setting_fits_is_named_at_once(saved, theirs, what):
    with pytest.raises(RunError, match=rf"\.safetensors has {what}, which no model of vitrine has$"):
        started(saved(theirs()))


def test_files_that_are_no_weights_are_refused_in_one_line(tmp_path):
    files = {
        "cut.pth": b"PK\x03\x04 cut short",
        "text.safetensors": b"no weights",
        "empty.bin": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RunError, match="damaged, or holds more than tensors"):
            started(str(tmp_path / name))
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(RunError, match="no Vision Transformer under timm's names"):
        started(str(tmp_path / "other.pth"))
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(RunError, match="no state dict"):
        started(str(tmp_path / "list.pth"))
    with pytest.raises(RunError, match=r"nowhere\.pth: there is no such file"):
        started(str(tmp_path / "nowhere.pth"))


def test_pickled_code_is_refused_and_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    torch.save({"patch_embed.proj.weight": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(RunError, match="more than tensors: pickled objects could run any code, and are refused"):
        started(str(tmp_path / "trap.pth"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(1, 1, 1, 1).expand(24, 3, 4000, 4000),
        torch.zeros(24, 0, 4, 4),
        torch.zeros(24, 3, 4, 4).to_sparse(),
        torch.zeros(24, 3, 4, 4, device="meta"),
    ],
    ids=["expanded", "empty", "sparse", "meta"],
)
def test_weights_whose_values_the_file_does_not_hold_are_refused(tmp_path, weight):
    torch.save(published().state_dict() | {"patch_embed.proj.weight": weight}, tmp_path / "w.pth")
    shape = "x".join(map(str, weight.shape))
    with pytest.raises(RunError, match=f"the file does not hold all values of patch_embed.proj.weight, {shape}; it"):
        started(str(tmp_path / "w.pth"))


def test_frequencies_of_more_blocks_than_a_file_can_have_are_not_taken_apart(tmp_path):
    header = b'{"rope.freqs":{"dtype":"F32","shape":[2,20000000,0,1],"data_offsets":[0,0]}}'
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RunError, match=r"values of rope\.freqs, 2x20000000x0x1; it must have dense weights"):
        started(str(path))
    assert set(under_our_names({"rope.freqs": torch.zeros(2, 5, 1, 1)})) == {"rope.freqs"}
    assert set(under_our_names({"rope.freqs": torch.zeros(2)})) == {"rope.freqs"}


def test_a_compressed_file_is_refused(tmp_path):
    torch.save(published().state_dict(), tmp_path / "w.pth")
    with (
        zipfile.ZipFile(tmp_path / "w.pth") as stored,
        zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in stored.namelist():
            small.writestr(name, stored.read(name))
    with pytest.raises(RunError, match=r"small\.pth is damaged, .*: it is compressed, and could be of any size"):
        started(str(tmp_path / "small.pth"))


def test_a_file_whose_entries_share_bytes_is_refused(tmp_path):
    torch.save(published().state_dict(), tmp_path / "w.pth")
    let_entries_overlap(tmp_path / "w.pth")
    with pytest.raises(RunError, match=r"w\.pth is damaged, .*: its entries overlap, and could be of any size"):
        started(str(tmp_path / "w.pth"))


def hub_cache(home, repository, model):
    """What the hub's client leaves after a download."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(model.state_dict(), folder / "snapshots" / ("0" * 40) / "model.safetensors")


SHORT = ["trainer.max_epochs=1", "debug.limit_batches=1"]


@pytest.mark.whole
def test_a_name_in_timms_hub_is_fine_tuned_on_a_folder_of_pictures(tmp_path, train):
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False)
    hub_cache(tmp_path / "home", timm.get_pretrained_cfg(name).hf_hub_id, model)
    write_image_folder(tmp_path / "DIR", "train", "test", size=(32, 32))
    overrides = ["model=vit_tiny", "patch=16", "data=imagefolder", "data.root=DIR", "data.image_size=32", *SHORT]
    done = train(*overrides, f"model.pretrained={name}", env={"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert f"{name}; positions resized from 14x14 to 2x2; new head for 2 classes" in done.stdout
    assert "to use it: data.mean=[0.5,0.5,0.5] data.std=[0.5,0.5,0.5]\n" in done.stderr
    facts = json.loads((only_run(tmp_path) / "run.json").read_text())
    changes = ["positions resized from 14x14 to 2x2", "new head for 2 classes", "evaluated by timm with crop_pct=0.9"]
    assert facts["pretrained"] == [name, *changes]


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("vit.embeddings.patch_embeddings.projection.weight", "transformers"),
        ("backbone.patch_embed.projection.weight", "MMPretrain"),
    ],
)
def test_weights_by_the_names_of_another_library_are_refused_with_the_way_to_timms(tmp_path, name, library):
    torch.save({name: torch.zeros(24, 3, 4, 4)}, tmp_path / "other.pth")
    with pytest.raises(RunError, match=rf"its names are those of {library}; timm's hub has most published weights"):
        started(str(tmp_path / "other.pth"))
    with pytest.raises(RunError, match=r"no such run or file; timm's hub has most published weights"):
        started("google/vit-base-patch16-224")


@pytest.mark.whole
def test_without_a_network_the_error_says_so_and_nothing_is_written(tmp_path, train):
    no_network = {"HF_HOME": str(tmp_path / "home"), "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = train("model=vit_tiny", "model.pretrained=vit_tiny_patch16_224.augreg_in21k", env=no_network)
    assert done.returncode == 1
    assert "could not be downloaded" in done.stderr
    assert "without a network" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("outputs/**/run.json"))


def test_an_unknown_timm_name_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(RunError, match=r"no such weights; did you mean vit_base_patch16_224\."):
        started("vit_base_patch16_224.augreg_in21")
    with pytest.raises(RunError, match="no such weights"):
        started("resnet_of_my_own")


def test_a_missing_file_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError) as refusal:
        compose([*SMALL, f"model.pretrained={tmp_path}/none.safetensors", "model.heads=5"])
    assert [fault.key for fault in refusal.value.faults] == ["model.pretrained", "model.heads"]


@pytest.mark.parametrize("name", ["a" * 300, "b" * 300 + ".safetensors"])
def test_a_path_that_the_system_refuses_is_a_configuration_error(name):
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        compose([*SMALL, f"model.pretrained={name}"])


def test_weights_of_a_model_with_a_part_that_computes_with_values_are_taken(tmp_path, monkeypatch):
    table = """
    import numpy
    import torch
    from torch import nn


    class Table(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.register_buffer("table", torch.from_numpy(numpy.ones(config.dim, numpy.float32)))

        def forward(self, tokens):
            return tokens + self.table * tokens.max().item()
    """
    enter_lab(tmp_path, monkeypatch, "lab_of_weights", table=table)
    own = ViTConfig(**SIZES | {"position": "lab_of_weights.table.Table"})
    weights = {f"model.{name}": value for name, value in VisionTransformer(own).state_dict().items()}
    torch.save({"state_dict": weights, "config": {"model": dataclasses.asdict(own)}}, tmp_path / "best.ckpt")
    drawn = torch.random.get_rng_state()
    prepared = Pretrained.prepare(dataclasses.replace(own, pretrained="best.ckpt"))
    assert len(prepared.weights) == len(weights)
    assert torch.equal(torch.random.get_rng_state(), drawn)


PARTS = """
import torch
from torch import nn

from vitrine.models.attention import Attention


class Table(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.table = nn.Parameter(torch.ones(shape))

    def forward(self, q, k, indices):
        return q, k, self.table.unflatten(-1, (-1, k.shape[2])) if self.table.ndim == 2 else self.table


class Biased(Attention):
    def __init__(self, dim, heads, shape):
        super().__init__(dim, heads, relation=Table(heads, *shape))


class Sharpened(Attention):
    def __init__(self, dim, heads, temperature):
        super().__init__(dim, heads)
        self.temperature = temperature

    def relate(self, q, k, indices=None):
        return self.temperature * q, k, None


class Normed(Attention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads, qkv_bias=False, qk_norm=nn.LayerNorm)


class Embed(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.conv = nn.Conv2d(config.in_channels, 8, 3, padding=1)
        self.proj = nn.Conv2d(8, config.dim, config.patch_hw, stride=config.patch_hw, bias=False)

    def forward(self, images):
        return self.proj(self.conv(images)).flatten(2).transpose(1, 2)
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_embed": "lab_of_starts.parts.Embed", "in_channels": 1},
        {"attention": "lab_of_starts.parts.Biased", "attention_options": {"shape": [17, 17]}},
        {"attention": "lab_of_starts.parts.Biased", "attention_options": {"shape": [17 * 17]}},
    ],
    ids=["patch embedding", "table", "flat table"],
)
def test_weights_of_parts_of_the_users_start_the_same_model_whatever_their_names(tmp_path, monkeypatch, changes):
    enter_lab(tmp_path, monkeypatch, "lab_of_starts", parts=PARTS)
    own = ViTConfig(**(SIZES | changes), init="torch")
    theirs = VisionTransformer(own).eval()
    weights = {f"model.{name}": value for name, value in theirs.state_dict().items()}
    torch.save({"state_dict": weights, "config": {"model": dataclasses.asdict(own)}}, tmp_path / "best.ckpt")
    model, changed = started("best.ckpt", **changes)
    assert changed == []
    given = images(channels=own.in_channels)
    assert torch.equal(model(given), theirs(given))
    assert torch.equal(theirs.resized(image_size=16)(given), theirs(given))


def test_weights_of_the_hub_are_taken_by_an_attention_of_the_users(from_hub, tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, "lab_of_starts", parts=PARTS)
    own = {"attention": "lab_of_starts.parts.Sharpened", "attention_options": {"temperature": 2.0}}
    _, changes = from_hub(published(), **own)
    assert changes == []
    with pytest.raises(ConfigError, match="computes something else"):
        from_hub(published(act_layer="quick_gelu"), **own)
    normed = published(qk_norm=True, qkv_bias=False)
    assert from_hub(normed, attention="lab_of_starts.parts.Normed")[1] == []
    with pytest.raises(RunError, match=r"qkv.bias is missing; .*q_norm.weight is not in the model"):
        from_hub(normed, **own)


@pytest.mark.whole
def test_a_run_starts_from_anothers_weights_and_resumes_without_them(tmp_path):
    first = fit(compose([*SMALL, f"paths.output_dir={tmp_path}"]))
    best = first.run_dir / "checkpoints" / "best.ckpt"
    same = ["trainer.max_epochs=1", "optimizer.lr=1e-9"]
    overrides = [*SMALL, *same, f"model.pretrained={best}", f"paths.output_dir={tmp_path / 'second'}"]
    second = fit(compose(overrides))
    assert second.metrics["val/loss"] == pytest.approx(first.metrics["val/loss"], abs=1e-3)

    best.unlink()
    longer = resume(second.run_dir, compose([f"resume={second.run_dir}", "trainer.max_epochs=2"]))
    assert longer.metrics["val/loss"] == pytest.approx(first.metrics["val/loss"], abs=1e-3)


def test_defaults_follow_published_weights_unless_overridden():
    plain = compose(["model=vit_base"]).model
    assert (plain.position, plain.class_token, plain.pool) == ("sincos2d", False, "mean")
    config = compose(["model=vit_base", "model.pretrained=vit_base_patch16_224.augreg_in21k"])
    assert (config.model.position, config.model.class_token, config.model.pool) == ("learned", True, "cls")
    assert config.optimizer.lr == pytest.approx(0.02 / 768)
    typed = compose(["model=vit_base", "model.pretrained=vit_base_patch16_224", "pool=map", "position=learned2d"]).model
    assert (typed.position, typed.class_token, typed.pool) == ("learned2d", False, "map")


@pytest.mark.parametrize("source", [".", "checkpoints/best.ckpt", "checkpoints/epoch_1.ckpt"])
def test_defaults_follow_a_run_and_its_checkpoints(source, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("best", "epoch_1"):
        (tmp_path / "checkpoints" / f"{name}.ckpt").touch()
    (tmp_path / "config.yaml").write_text("model: {position: rope, class_token: false, pool: map}\n")
    model = compose(["model=vit_nano", f"model.pretrained={tmp_path / source}"]).model
    assert (model.position, model.class_token, model.pool) == ("rope", False, "map")


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"position": "learned2d", "patch_stride": 2}, "positions resized from 7x7 to 15x15"),
        ({"position": "relative", "norm_placement": "sandwich"}, "positions resized from 4x4 to 8x8"),
        ({"patch_embed": "conv_stem", "position": "rope_mixed", "heads": 6, "mlp": "swiglu"}, None),
        ({"patch_embed": "shifted", "position": "sincos2d", "attention": "headwise"}, None),
    ],
)
def test_a_run_can_start_from_any_run_of_another_size(tmp_path, changes, reported):
    old = ViTConfig(**(SIZES | changes), init="torch")
    theirs = VisionTransformer(old).eval()
    path = tmp_path / "best.ckpt"
    weights = {f"model.{name}": value for name, value in theirs.state_dict().items()}
    torch.save({"state_dict": weights, "config": {"model": dataclasses.asdict(old)}}, path)
    free = {"init": "xavier", "mlp_hidden_dropout": 0.1, "class_token_init": "normal", "position_init": "uniform"}
    model, changed = started(str(path), **(changes | free), image_size=32)
    assert changed == ([] if reported is None else [reported])
    torch.testing.assert_close(model(images(32)), theirs.resized(image_size=32)(images(32)), rtol=0, atol=1e-5)


def test_images_of_another_number_of_channels_are_named(tmp_path):
    """Also where patches are of another size, and would be resized first."""
    old = ViTConfig(**SIZES | {"in_channels": 1}, init="torch")
    weights = {f"model.{name}": value for name, value in VisionTransformer(old).state_dict().items()}
    path = tmp_path / "best.ckpt"
    torch.save({"state_dict": weights, "config": {"model": dataclasses.asdict(old)}}, path)
    for patch in (old.patch_size, [2, 2]):
        with pytest.raises(ConfigError, match="images of 1 channel") as raised:
            Pretrained.prepare(ViTConfig(**SIZES | {"in_channels": 3, "patch_size": patch}, pretrained=str(path)))
        assert [fault.key for fault in raised.value.faults] == ["data.in_channels"]


@pytest.mark.parametrize(
    ("stored", "overrides"),
    [
        ({"mean": [0.5], "std": [0.25] * 3}, ""),
        ({"mean": [0.5, 0.4, 0.5], "std": [0.2]}, "data.mean=[0.5,0.4,0.5] data.std=[0.2]"),
        ({"mean": [0.1, 0.2], "std": "0.2"}, ""),  # of two channels, and no numbers at all
        (None, ""),
    ],
)
def test_images_that_were_normalised_otherwise_are_reported(tmp_path, stored, overrides):
    old, path = ViTConfig(**SIZES, init="torch"), tmp_path / "best.ckpt"
    weights = {f"model.{name}": value for name, value in VisionTransformer(old).state_dict().items()}
    torch.save({"state_dict": weights, "config": {"model": dataclasses.asdict(old), "data": stored}}, path)
    data = compose(["data=cifar10", "data.mean=[0.5,0.5,0.5]", "data.std=[0.25]"]).data
    note = Pretrained.prepare(ViTConfig(**SIZES, pretrained=str(path))).other_statistics(data)
    assert note.partition("to use it: ")[2] == overrides


def test_grey_images_are_to_be_normalised_as_colour_images_of_the_weights_were_on_average():
    statistics = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    data, weights = compose([]).data, Pretrained("run", {}, [], statistics=statistics)
    assert weights.other_statistics(data).endswith("to use it: data.mean=[0.449] data.std=[0.226]")
    assert weights.other_statistics(dataclasses.replace(data, mean=[0.449], std=[0.226])) == ""


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, saved):
    weights = published().state_dict()
    del weights["blocks.1.mlp.fc2.bias"]
    torch.save(weights, tmp_path / "cut.pth")
    with pytest.raises(RunError, match=r"cut\.pth does not fit the model: blocks\.1\.mlp\.fc2\.bias is missing"):
        Pretrained.prepare(ViTConfig(**SIZES, pretrained=str(tmp_path / "cut.pth")))


def test_a_rounded_mlp_ratio_matches_the_weights(saved):
    theirs = published(mlp_ratio=8 / 3)
    model, _ = started(saved(theirs), mlp_ratio=2.666667)
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)


def test_a_field_that_a_checkpoint_does_not_name_has_its_default(tmp_path):
    old = ViTConfig(**SIZES, init="torch")
    path = tmp_path / "best.ckpt"
    weights = {f"model.{name}": value for name, value in VisionTransformer(old).state_dict().items()}
    stored = dataclasses.asdict(old)
    del stored["sincos_frequencies"]
    torch.save({"state_dict": weights, "config": {"model": stored}}, path)
    started(str(path), **{"position": old.position})
    with pytest.raises(ConfigError, match="sincos_frequencies"):
        started(str(path), **{"position": old.position, "sincos_frequencies": "big_vision"})


def test_a_checkpoint_of_a_later_version_is_refused_in_one_line(tmp_path):
    path, stored = tmp_path / "best.ckpt", dataclasses.asdict(ViTConfig(**SIZES)) | {"of_tomorrow": 1}
    torch.save({"state_dict": {}, "config": {"model": stored}}, path)
    with pytest.raises(RunError, match=r"best\.ckpt: no such field in ViTConfig: of_tomorrow"):
        started(str(path))
