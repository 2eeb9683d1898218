"""Source of a model: a local folder or a reachable hub.

huggingface_hub retries an unreachable hub for minutes, for each file. So one request
with a time limit checks the hub first.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from transformers.utils.hub import cached_file

from trainer.config import HUB_ID
from trainer.console import print_error
from trainer.disk import open_inside, resolve_inside
from trainer.internet import why_unreachable

CONFIG, _ADAPTER_CONFIG = "config.json", "adapter_config.json"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZERS = "tokenizer_config.json", "tokenizer.json"
# With the seconds that torch takes to load, 15 from a run's start to its end.
WAIT_SECONDS = max(8.0, float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 0))
_SERVER_FAULTS = 500  # HTTP statuses from here on
# Libraries read these whole; the largest published tokenizer.json has 35 MB.
_READ_WHOLE = {".jinja", ".json", ".model", ".py", ".tiktoken", ".txt"}
_LARGEST_READ_WHOLE = 256 * 2**20
_MOST_FILES = 10_000
_TEMPLATES = "additional_chat_templates"  # the only folder that is read whole
_INDEX_SUFFIX = ".safetensors.index.json"
_answered: set[str] = set()  # hubs that did, in this process


def check_source(
    source: str, *, revision: str | None, has_weights: bool = True
) -> None:
    """Refuse a folder without a model, and an unreachable hub.

    If the hub is unreachable but this machine's cache has the files, this process
    continues with HF_HUB_OFFLINE=1.

    Args:
        has_weights: whether they are needed; else the tokenizer is enough.

    Raises:
        ValueError: there is no such folder, no model in it, a file in it that cannot
            be read to its end, or no answer.
    """
    if HUB_ID.fullmatch(source) is None or os.path.isdir(source):
        _check_folder(source)
        return
    hub = constants.ENDPOINT
    if huggingface_hub.is_offline_mode() or hub in _answered:
        return
    lack = _ask(source, revision or "main")
    if lack is None:
        _answered.add(hub)
        return
    host = urlsplit(hub).netloc or hub
    if not _is_cached(source, revision, has_weights=has_weights):
        raise ValueError(
            f"Cannot reach {host} from this server: {lack}. Name a folder in place of "
            f"{source}, or set HF_HUB_OFFLINE=1 if this machine's cache has it."
        )
    print_error(
        f"Cannot reach {host} from this server: {lack}. Using {source} from this "
        "machine's cache. Set HF_HUB_OFFLINE=1 to skip the request."
    )
    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"  # for processes that this one starts


def _check_folder(source: str) -> None:
    folder = Path(source)
    if not os.path.isdir(folder):
        raise ValueError(
            f"Model folder {folder.absolute()} not found. Name a folder with a saved "
            "model, or a Hugging Face model ID."
        )
    if not os.path.isfile(folder / CONFIG):
        if os.path.isfile(folder / _ADAPTER_CONFIG):
            raise ValueError(
                f"The folder {source} is a LoRA adapter{_base_of(folder)}, not a "
                "model. Merge the two with peft's merge_and_unload, save the result "
                "and name its folder."
            )
        raise ValueError(
            f"The folder {source} is not a saved model: it has no {CONFIG}. Name a "
            "folder that save_pretrained wrote."
        )
    check_files(folder)


def _base_of(adapter: Path) -> str:
    try:
        with open_inside(adapter, _ADAPTER_CONFIG) as file:
            settings = json.loads(file.read(_LARGEST_READ_WHOLE))
        return f" of {settings['base_model_name_or_path']}"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def check_files(folder: Path) -> None:
    """Refuse files that a library would read or wait for without end, or elsewhere.

    Raises:
        ValueError: one is a pipe or a device, a link out of the folder, or a text file
            that is too large.
    """
    num_files = 0
    for place, folders, names in os.walk(folder):
        num_files += len(names)
        if num_files > _MOST_FILES:
            raise ValueError(
                f"{folder} contains over {_MOST_FILES:,} files, more than a model has. "
                "Name a folder that save_pretrained wrote."
            )
        for name in (*folders, *names):
            _check_file(folder, os.path.relpath(os.path.join(place, name), folder))


def _check_file(folder: Path, name: str) -> None:
    file = resolve_inside(folder, name)
    try:
        status = file.stat()
    except OSError:  # a link to nowhere: as if it were not there
        return
    if stat.S_ISREG(status.st_mode):
        is_read_whole = name.endswith(_INDEX_SUFFIX) or (
            Path(name).suffix in _READ_WHOLE
            and os.path.dirname(name) in ("", _TEMPLATES)
        )
        if is_read_whole and status.st_size > _LARGEST_READ_WHOLE:
            raise ValueError(
                f"{folder / name} has {status.st_size:,} bytes; a model's file has at "
                f"most {_LARGEST_READ_WHOLE:,}. Name a folder that save_pretrained "
                "wrote."
            )
        if name.endswith(_INDEX_SUFFIX):
            for part in _names_in(file):
                resolve_inside(folder / Path(name).parent, str(part))
    elif not stat.S_ISDIR(status.st_mode):
        raise ValueError(
            f"{folder / name} is not a regular file. Name a folder that "
            "save_pretrained wrote."
        )


def _ask(source: str, revision: str) -> str | None:
    """Return why the hub gives no answer; None where it gives one, be it a refusal."""
    faults: list[str | None] = []

    def ask() -> None:
        faults.append(_fault_of(source, revision))

    # Looking up a host's name heeds no timeout, and neither does a slow answer's sum.
    asking = threading.Thread(target=ask, daemon=True, name="ask-hub")
    asking.start()
    asking.join(WAIT_SECONDS)
    return faults[0] if faults else f"no answer within {WAIT_SECONDS:g} s"


def _fault_of(source: str, revision: str) -> str | None:
    try:
        url = huggingface_hub.hf_hub_url(source, CONFIG, revision=revision)
        # Longer than `_ask` waits, so that one sentence says what was too long.
        huggingface_hub.get_hf_file_metadata(url, timeout=2 * WAIT_SECONDS)
    except (ValueError, OfflineModeIsEnabled):
        return None  # no hub's id: loading says so
    except HfHubHTTPError as error:
        status = error.response.status_code
        return f"it returned status {status}" if status >= _SERVER_FAULTS else None
    except Exception as error:  # noqa: BLE001 - of whichever HTTP library the hub's has
        cause, _, _ = why_unreachable(_innermost(error)).partition(". ")
        return cause
    return None


def _innermost(error: BaseException) -> Exception:
    """Return what the network did, which HTTP libraries wrap."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error if isinstance(error, Exception) else OSError()


def _is_cached(source: str, revision: str | None, *, has_weights: bool) -> bool:
    """Return whether the tokenizer is and, where they are needed, settings and all
    weights.
    """
    files = {
        name: find_file(source, name, revision, local=True)
        for name in (CONFIG, *_TOKENIZERS)
    }
    has_tokenizer = any(files[name] for name in _TOKENIZERS)
    if not (has_tokenizer and has_weights):
        return has_tokenizer
    weights = weight_files(source, revision, local=True)
    return files[CONFIG] is not None and None not in weights.values()


def weight_files(
    source: str, revision: str | None, *, local: bool = False
) -> dict[str, Path | None]:
    """Return a model's files of weights by name, as far as they are there.

    Raises:
        ValueError: the list of them cannot be read.
    """
    index = find_file(source, WEIGHTS_INDEX, revision, local=local)
    names = [WEIGHTS] if index is None else _names_in(index)
    return {name: find_file(source, name, revision, local=local) for name in names}


def _names_in(index: Path) -> list[str]:
    try:
        return sorted({*json.loads(index.read_bytes())["weight_map"].values()})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{index} lists no weight files. Save or download the model again."
        ) from None


def find_file(
    source: str, name: str, revision: str | None, *, local: bool = False
) -> Path | None:
    """Return a file of a model folder or hub id; with `local`, no hub is asked."""
    try:
        path = cached_file(
            source,
            name,
            revision=revision,
            local_files_only=local,
            _raise_exceptions_for_missing_entries=False,
        )
    except OSError:
        return None
    return None if path is None else Path(path)
