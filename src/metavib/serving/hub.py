"""Models on the Hugging Face hub, through `huggingface_hub` where it is installed."""

from pathlib import Path
from types import ModuleType
from typing import Any

from metavib.core.errors import UserError, first_line, require_installed

FILES = ("config.json", "model.safetensors", "README.md")  # nothing else is fetched or sent


def downloaded(name: str, **options: Any) -> Path:
    """The folder that a model of the hub was copied to."""
    hub = _hub(f"there is no folder {name}, and to look for it on the hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(FILES), **options))
    except Exception as error:  # of the network, of the hub, of the name: all of them are told alike
        raise UserError(
            f"there is no folder {name}, and it could not be fetched from the hub: {first_line(error)}"
        ) from error


def pushed(folder: Path, repo: str, *, private: bool, token: str | None) -> str:
    """Send a model directory; the address of it."""
    hub = _hub("to put a model on the hub")
    try:
        api = hub.HfApi(token=token)
        name = api.create_repo(repo, private=private, exist_ok=True).repo_id
        title = "Model of metavib"
        sent = api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(FILES), commit_message=title
        )
    except Exception as error:
        raise UserError(f"{repo} could not be put on the hub: {first_line(error)}") from error
    return str(sent)


def _hub(wish: str) -> ModuleType:
    require_installed("huggingface_hub", f"{wish} needs huggingface_hub", extra="hub")
    import huggingface_hub

    return huggingface_hub
