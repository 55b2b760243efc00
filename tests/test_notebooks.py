"""The notebooks under examples/notebooks, executed in a real kernel on few images, one kernel for all of them."""

import re

import nbformat
import numpy as np
import pytest
import yaml
from helpers.running import ROOT, write_image_folder
from nbclient import NotebookClient

from vitrine.data.shards import write_shards
from vitrine.distributed.hardware import cpu_supports_bf16

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SHORT = ["trainer.max_epochs=1", "debug.limit_batches=2", "trainer.compile=nothing", "accelerator=cpu"]
SEED = "import torch; torch.manual_seed(1)"  # initial weights decide whether a first loss is above or below 5
# What a cell prints, as each tutorial walks through it.
PRINTED = {
    "comsci_mnist": [
        "cut (2, 16, 49)",
        "embedded (2, 17, 64)",
        "logits (2, 100)",
        "854,308",
        "first loss 4.",  # ln 100, not ln 10
        "layers True",
    ],
    "pulfer_mnist": ["cut (3, 49, 16)", "patches (3, 49, 8)", "attn.weights (3, 2, 50, 50)", "1,642", "loss 1.4611"],
    "notebook_mnist32": [
        "cut (2, 4, 256)",
        "patches (2, 4, 9)",
        "attn.weights (2, 3, 5, 5)",
        "5,689",
        "(9, 1, 16, 16)",
    ],
    "vit_base_anatomy": ["cut (1, 196, 768)", "embedded (1, 197, 768)", "features (1, 197, 768)", "1,536 in the notes"],
    "intuitive_cifar10": ["cut (2, 64, 192)", "embedded (2, 65, 256)", "attn.weights (2, 4, 65, 65)", "3,228,426"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Random images in the place of MNIST and CIFAR-10, and a folder of pictures."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name, shape in (("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))):
        splits = {
            split: (random.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 10)
            for split, count in (("train", 600), ("test", 40))
        }
        write_shards(root / f"{name}-packed", name, [str(label) for label in range(10)], splits, shard_size=10**6)
    write_image_folder(root / "pictures", "train", "test", size=(32, 32))
    return root


@pytest.fixture(scope="module")
def kernel():
    """A Jupyter kernel, which imports torch once."""
    from jupyter_client import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


def texts(notebook):
    """Everything that the cells printed or returned as text."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)


def test_every_tutorial_has_a_short_notebook_without_outputs():
    tutorials = yaml.safe_load((ROOT / "benchmarks/studies/tutorials.yaml").read_text())
    assert sorted(tutorials) == NOTEBOOKS
    for name in NOTEBOOKS:
        cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
        assert len(cells) <= 12, name
        assert not any(cell.get("outputs") for cell in cells), name


@pytest.mark.whole
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_trains_draws_and_predicts(name, data, kernel, tmp_path):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    small = ["model.depth=1", "data.batch_size=8"] if name == "vit_base_anatomy" else []
    root = data / "pictures" if name == "vit_base_anatomy" else data
    overrides = [f"data.root={root}", f"paths.output_dir={tmp_path}", f"paths.cache_dir={tmp_path}", *SHORT, *small]
    if not cpu_supports_bf16():
        overrides.append("trainer.precision=32-true")  # emulated, a step of T5's takes most of a minute
    place = next(index for index, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(f"%reset -f\n{SEED}\noverrides = {overrides}"))

    NotebookClient(notebook, km=kernel, timeout=300).execute()

    printed = re.sub(" +", " ", texts(notebook))
    assert [line for line in (*PRINTED[name], "'test/acc': ", "true: ", "predicted: [(") if line not in printed] == []
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "\x1b" not in printed, "nor is the progress bar drawn again and again"
    assert not any("<pre" in output.get("data", {}).get("text/html", "") for output in shown), "a table is plain text"
    pictures = 7 if name == "intuitive_cifar10" else 6
    assert sum("image/png" in output.get("data", {}) for output in shown) == pictures
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "metrics.json").is_file()
