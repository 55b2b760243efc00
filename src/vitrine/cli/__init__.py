"""The commands: ``vitrine NAME``, and the same code as ``train.py``, ``eval.py``, ``predict.py`` and ``scripts/``."""

# Each name with its module in this package and what it does.
COMMANDS = {
    "train": ("train", "train a model, or sweep over choices with -m"),
    "eval": ("evaluate", "test a run's checkpoint again"),
    "predict": ("predict", "classify pictures with a trained model"),
    "export": ("export", "export a trained model to run without vitrine: ONNX, timm, ..."),
    "compare": ("compare", "which runs are better, and how sure that is"),
    "report": ("report", "write the page of a run: results, mistakes, what its model has learned"),
    "summary": ("summary", "print the layers of a model: shapes, parameters, FLOPs"),
    "preview": ("preview", "draw training pictures as the model sees them, augmentation included"),
    "page": ("page", "write a page to try a trained model in a browser"),
    "runs": ("runs", "list, show, compare, export and delete runs"),
    "watch": ("watch", "watch a sweep or a run from another terminal"),
    "sweeps": ("sweeps", "the progress of sweeps, and their best trials"),
    "wandb-sync": ("wandb_sync", "upload runs that were trained without a connection to W&B"),
    "wandb-workspace": ("wandb_workspace", "save a view of a W&B project that compares runs"),
    "pack": ("pack", "pack a data set into a few files, for machines without a network"),
    "channel-statistics": ("channel_statistics", "mean and standard deviation of a data set's channels"),
}
