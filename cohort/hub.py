"""`cohort push`: a run's completions and metrics as a dataset on Hugging Face."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cohort.api import Client
from cohort.api.frames import import_library
from cohort.api.run import Run
from cohort.output import (
    REFUSED,
    Bar,
    CommandEnded,
    print_error,
    short,
    show,
    size,
)

CARD = "README.md"
COLUMNS = """\
| Column | Meaning |
| --- | --- |
| `step`, `prompt_index`, `position` | Position of the completion |
| `prompt`, `answer`, `completion` | Texts; an answer is the dataset's, a list is JSON |
| `reward`, `rules`, `advantage` | Reward, scores of rules before weights, advantage |
| `num_tokens`, `end_reason`, `mean_logprob` | Log-probs are in nats per token |
| `turns` | Turns of an episode |
| `signal`, `is_trained`, `group_reward_mean`, `group_reward_std` | Of its group |
| `good`, `bad`, `tags`, `comments` | Annotations of people |
"""


def repository(text: str) -> str:
    """
    >>> repository("alice/sums")
    'alice/sums'
    """
    user, _, name = text.partition("/")
    if not user or not name or "/" in name:
        raise ArgumentTypeError(f"must be USER/NAME; got {text[:200]!r}")
    return text


def push(args: Namespace) -> None:
    """Upload the files in one commit; an existing card is kept."""
    hub = None if args.dry_run else import_library("huggingface_hub")
    run = Client().runs.get(args.run)
    with TemporaryDirectory(prefix="cohort-") as folder:
        sizes = _write_files(run, Path(folder), args)
        address = ""
        if hub is not None:
            try:
                address = _upload(hub.HfApi(), run, Path(folder), sizes, args)
            except Exception as error:  # noqa: BLE001 - its own, and its HTTP client's
                print_error(f"Nothing was pushed to {args.name}: {error}")
                raise CommandEnded(REFUSED) from None
    files = [f"{name}  {size(num_bytes)}\n" for name, num_bytes in sizes.items()]
    end = f"Pushed to {address}" if address else "Nothing was pushed: a dry run."
    data = {"run": run.id, "files": sizes, "url": address}
    show(args, data, f"{''.join(files)}{end}")


def _write_files(run: Run, folder: Path, args: Namespace) -> dict[str, int]:
    """Write tables and card; returns the size of each file."""
    steps = {"first_step": args.first_step, "last_step": args.last_step}
    tables = ["completions", "metrics"] if run.groups(limit=1) else ["metrics"]
    for table in tables:
        with Bar(f"Downloading {table}") as bar:
            run.export(folder / f"{table}.parquet", **steps, on_progress=bar)
    (folder / CARD).write_text(_write_card(run, tables, args), encoding="utf-8")
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _write_card(run: Run, tables: list[str], args: Namespace) -> str:
    last = run.last_step if args.last_step is None else args.last_step
    facts = {
        "Run": run.name,
        "Model": run.model,
        "Dataset": run.dataset_version,
        "Reward": run.recipe_version,
        "Steps": f"{args.first_step or 0} to {last}",
        "Exported": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    rows = [
        f"| {name} | {_cell(str(value))} |"
        for name, value in facts.items()
        if value is not None
    ]
    configs = [
        f"- config_name: {table}\n  data_files: {table}.parquet" for table in tables
    ]
    return "\n".join(
        [
            "---",
            "tags:",
            "- cohort",
            "- grpo",
            "configs:",
            *configs,
            "---",
            "# Completions of a GRPO run" if len(tables) > 1 else "# Metrics of a run",
            "",
            "Exported from Cohort. Choose a licence before you publish it.",
            "",
            "| | |",
            "| --- | --- |",
            *rows,
            "",
            COLUMNS if len(tables) > 1 else "",
        ]
    )


def _cell(text: str) -> str:
    """
    >>> _cell("a | <b>")
    'a &#124; &lt;b>'
    """
    return short(text, 200).replace("|", "&#124;").replace("<", "&lt;")


def _upload(
    api: Any, run: Run, folder: Path, sizes: dict[str, int], args: Namespace
) -> str:
    """Commit the files, and return the dataset's URL; `sizes` loses a card that the
    dataset has, which people may have edited.
    """
    dataset = {"repo_id": args.name, "repo_type": "dataset"}
    address = str(api.create_repo(**dataset, private=not args.public, exist_ok=True))
    info = api.repo_info(**dataset)
    if not (info.private or args.public):
        raise ValueError("it is public. Pass --public to publish the run there.")
    if any(file.rfilename == CARD for file in info.siblings or ()):
        (folder / CARD).unlink()
        del sizes[CARD]
    message = f"Add run {run.id} of Cohort"
    api.upload_folder(**dataset, folder_path=folder, commit_message=message)
    return address
