"""Metrics of classifiers on validation and test images: their names, and whether higher is better."""

BASIC = {"acc": True, "loss": False}

# Measured on the test images once; on validation images after each epoch if callbacks.metrics names them, or if they
# are monitored.
EXTRA = {"balanced_acc": True, "macro_f1": True, "top5_acc": True, "auroc": True, "ece": False}

VALIDATION = {f"val/{name}": higher for name, higher in (BASIC | EXTRA).items()}
TEST = {f"test/{name}": higher for name, higher in (BASIC | EXTRA).items()}

TITLES = {  # in tables and sentences
    "acc": "accuracy",
    "balanced_acc": "balanced accuracy",
    "macro_f1": "macro F1",
    "top5_acc": "top-5 accuracy",
    "auroc": "AUROC",
    "ece": "calibration error",
    "class_acc": "accuracy",
}


def lower_is_better(name: str) -> bool:
    """Whether a metric of a run is a loss, a time or a calibration error, by its name in metrics.json."""
    return name.endswith(("loss", "seconds", "/ece"))
