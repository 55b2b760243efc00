"""torchmetrics without the metrics that nobody asks for, and with all of them for those who do."""

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_a_training_imports_neither_torchvision_nor_scipys_signals():
    done = run(
        "import sys, vitrine.training.fit, vitrine.training.evaluate\n"
        "print([name for name in ('torchvision', 'scipy.signal', 'torchmetrics.image') if name in sys.modules])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


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
