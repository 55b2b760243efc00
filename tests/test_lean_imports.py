"""torchmetrics without the metrics that nobody asks for, and with all of them for those who do."""

import subprocess
import sys

import pytest
from helpers.running import SMALL


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


UNUSED = ("torchvision", "scipy", "torchmetrics.image", "matplotlib", "sklearn", "tensorboard", "wandb", "pandas")


def test_a_training_imports_nothing_that_it_does_not_need_and_plots_of_metrics_are_there_all_the_same():
    done = run(
        "import sys, vitrine.training.fit, vitrine.training.evaluate, vitrine.tracking.loggers\n"
        f"print([name for name in {UNUSED} if name in sys.modules])\n"
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
def test_a_whole_training_imports_neither_scikit_learn_nor_pandas_nor_the_statistics_of_scipy(tmp_path):
    done = run(
        "import sys\n"
        "from vitrine import compose, fit\n"
        f"fit(compose({[*SMALL, 'debug=quick', 'accelerator=cpu', f'paths.output_dir={tmp_path}']}))\n"
        "print([name for name in ('sklearn', 'scipy', 'pandas', 'torchvision') if name in sys.modules])"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.whole
def test_every_metric_is_there_for_those_who_ask():
    """In a process each: what was asked before must not matter."""
    for before in ("import vitrine.training.fit", "import torchmetrics, vitrine.training.fit", "import vitrine"):
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
        assert (done.stdout, done.stderr) == ("fine\n", ""), before
