"""``--format hf``: the folder of :mod:`to_timm` with a model card, as the Hugging Face hub shows it; and its upload."""

from pathlib import Path

from vitrine.errors import first_line
from vitrine.inference.export import to_timm
from vitrine.inference.export.formats import ExportError
from vitrine.inference.export.model_card import model_card
from vitrine.inference.export.source import ExportSource
from vitrine.inference.export.to_timm import load as load


def write(source: ExportSource, path: Path) -> None:
    """Write the folder; raises as :func:`to_timm.write` does."""
    to_timm.write(source, path)
    (path / "README.md").write_text(model_card(source), encoding="utf-8")


def push(path: Path, repository: str) -> str:
    """Upload the folder to the hub, with the token of the user's own login; return the page's address.

    Args:
        path: the folder.
        repository: its name in the hub, such as ``me/digits``; a new one is private.

    Raises:
        ExportError: the hub refuses it, or can't be reached; the folder stays.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="vitrine")
    try:
        created = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=created.repo_id, folder_path=path, commit_message="Upload a model trained with vitrine"
        )
    except Exception as error:  # the client raises errors of its transport
        problem = (
            f"{path} is written, but was not pushed to {repository}; the same command with --overwrite tries again"
        )
        raise ExportError(f"{problem}: {first_line(error)}") from None
    return str(created)
