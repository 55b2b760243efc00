"""A training imports neither PyTorch's compiler nor unused parts of torchmetrics; both work once they are used."""

import subprocess
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from helpers.running import SMALL

import vitrine
import vitrine.compare
from vitrine.lean_imports import PostponedCompiler


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_what_is_imported_when_it_is_first_used_is_completed_by_tab():
    for package in (vitrine, vitrine.compare):
        assert set(package.__all__) <= set(dir(package))
        assert all(callable(getattr(package, name)) for name in package.__all__)


UNUSED = ("torchvision", "scipy", "torchmetrics.image", "matplotlib", "sklearn", "tensorboard", "wandb", "pandas")
COMPILER = ("torch._dynamo.eval_frame", "torch._inductor", "sympy")


def test_a_training_imports_nothing_that_it_does_not_need_and_plots_of_metrics_are_there_all_the_same():
    done = run(
        "import sys, vitrine.training.fit, vitrine.training.evaluate, vitrine.tracking.loggers\n"
        f"print([name for name in {UNUSED + COMPILER} if name in sys.modules])\n"
        "import torch\n"
        "from torchmetrics.classification.accuracy import BinaryAccuracy\n"
        "accuracy = BinaryAccuracy()\n"
        "accuracy.update(torch.tensor([1, 0]), torch.tensor([1, 1]))\n"
        "figure, axes = accuracy.plot()\n"
        "import matplotlib.figure, torchmetrics.utilities.plot\n"
        "assert isinstance(figure, matplotlib.figure.Figure)\n"
        "assert torchmetrics.utilities.plot._AX_TYPE is matplotlib.axes.Axes\n"
        "print(torchmetrics.utilities.plot.plot_curve.__module__)"
    )
    assert (done.stdout, done.stderr) == ("[]\ntorchmetrics.utilities.plot\n", "")


@pytest.mark.whole
def test_a_whole_training_imports_neither_scikit_learn_nor_pandas_nor_scipy_nor_the_compiler(tmp_path):
    done = run(
        "import sys\n"
        "from vitrine import compose, fit\n"
        f"fit(compose({[*SMALL, 'debug=quick', 'accelerator=cpu', f'paths.output_dir={tmp_path}']}))\n"
        "unused = ['sklearn', 'scipy', 'pandas', 'torchvision', 'torch._dynamo.eval_frame', 'torch._inductor']\n"
        "print([name for name in unused if name in sys.modules])"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


FIRST = {
    "a model is compiled": "",
    "a module of it is imported": "from torch._dynamo.utils import counters\n",
    "PyTorch asks for repeatable results": "torch.use_deterministic_algorithms(False)\n",
    "its options are imported": "import torch._dynamo.config\n",
    "a name is asked for": "torch._dynamo.list_backends\n",
}


COMPILED = """
def compiled_after(first):
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    def step(model):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    step(layer)
    assert not isinstance(layer, OptimizedModule) and 'torch._dynamo.eval_frame' not in sys.modules
    exec(first)
    compiled = torch.compile(layer, backend='eager')
    step(compiled)
    assert isinstance(compiled, OptimizedModule) and not isinstance(layer, OptimizedModule)
    assert isinstance(compiled, torch._dynamo.OptimizedModule)
    for name in ('config', 'utils', 'eval_frame'):
        assert getattr(torch._dynamo, name) is sys.modules[f'torch._dynamo.{name}'], name
        assert sys.modules[f'torch._dynamo.{name}'].__spec__.name == f'torch._dynamo.{name}'
    assert torch._dynamo.eval_frame.config is torch._dynamo.config
    assert torch._dynamo.utils.counters['frames'] == {'total': 1, 'ok': 1}
    step(layer)
"""


@pytest.mark.whole
def test_the_compiler_is_there_once_it_is_needed():
    """Each case in a process of its own, forked from one that has imported what a training does."""
    done = run(
        "import os, sys, torch, vitrine.training.fit\n"
        "from lightning.fabric.wrappers import OptimizedModule\n"
        f"{COMPILED}"
        f"for case, first in {FIRST}.items():\n"
        "    if (pid := os.fork()) == 0:\n"
        "        compiled_after(first)\n"
        "        os._exit(0)\n"
        "    print(case, os.waitpid(pid, 0)[1], flush=True)\n"
    )
    assert (done.stdout.splitlines(), done.stderr) == ([f"{case} 0" for case in FIRST], "")


def test_a_compiler_that_cannot_be_loaded_fails_each_time_and_what_needs_none_works():
    class WithoutTemporaryFolder(Loader):
        def exec_module(self, module):
            raise FileNotFoundError("No usable temporary directory")

    module = ModuleType("torch._dynamo")
    PostponedCompiler(ModuleSpec(module.__name__, WithoutTemporaryFolder())).exec_module(module)
    outside_of_graphs = module.disable(abs)
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="No usable temporary directory"):
            module.list_backends()
    assert outside_of_graphs(-1) == 1


@pytest.mark.whole
@pytest.mark.parametrize(
    "before",
    [
        "import vitrine.training.fit",
        "import torchmetrics, vitrine.training.fit",
        "import vitrine",
    ],
)
def test_every_metric_is_there_for_those_who_ask(before):
    """In a process each: what was asked before must not matter."""
    done = run(
        f"{before}\n"
        "from torchmetrics import Accuracy, MetricCollection, functional\n"
        "from torchmetrics.classification import BinaryAccuracy\n"
        "import torch, torchmetrics\n"
        "assert torchmetrics.__version__\n"
        "both = MetricCollection({'one': BinaryAccuracy(), 'other': Accuracy(task='binary')})\n"
        "both.update(torch.tensor([1, 0]), torch.tensor([1, 1]))\n"
        "assert functional.accuracy(torch.tensor([1, 0]), torch.tensor([1, 1]), task='binary') == 0.5\n"
        "assert torchmetrics.image.PeakSignalNoiseRatio\n"
        "assert isinstance(both['one'], torchmetrics.Metric)\n"
        "try:\n"
        "    torchmetrics.nothing\n"
        "except AttributeError:\n"
        "    print('fine')\n"
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
