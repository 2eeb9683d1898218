"""Reproductions: published results, the settings that gave them, and runs of these.

A reproduction is NAME.toml: a preset, or a starter's run, with the keys that differ.
`main` is `python -m trainer reproduce`.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainer.config import RunConfig
from trainer.console import print_line
from trainer.events import Evaluated, Event, RunFinished, StepFinished, parse_event
from trainer.output.log import NAME
from trainer.presets.preset import PARTS, Preset, Tree, load_preset, write_preset
from trainer.rewards.spec import Recipe

FOLDER = Path(__file__).parent
STARTERS = FOLDER.parent / "starter"
NUM_SEEDS = 3  # from here on a result has a verdict
TEST_SET = "test"  # the name of the published test split among evaluation sets
# Settings of the place where a run trains: none of them is the result's.
_OWN = {"seed", "model.path", "data.rows", "evaluation.sets"}
_OWN_PARTS = {"checkpoint", "logging"}
# They change memory and speed, and the last digits at most.
FREE = {
    "data.max_prompt_tokens",  # a longer prompt is refused, not cut
    "evaluation.every_steps",
    "model.device",
    "model.gradient_checkpointing",
    "model.tf32",
    "optim.micro_batch_tokens",
    "reward.num_workers",
    *(f"distributed.{name}" for name in PARTS["distributed"].model_fields),
    *(
        f"rollout.{name}"
        for name in (
            *("cache_gib", "decoding", "engine", "max_batch_rows", "sleep"),
            *("tensor_parallel_size", "token_file", "url"),
        )
    ),
}
# The size of `--tiny`, where the starter's rows take the place of the target's.
_TINY_DATA = {"num_eval_rows": 4, "chat_template": "none", "max_prompt_tokens": 32}
_TINY: Tree = {
    "model": {"gradient_checkpointing": False},
    "rollout": {"prompts_per_step": 4, "max_new_tokens": 16, "engine": "transformers"},
    "optim": {"num_steps": 3, "warmup_steps": 0},
    "evaluation": {"every_steps": 3},
    "checkpoint": {"every_steps": 0},
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Published(_Part):
    """A published result; without a value, only a curve was published."""

    value: float | None = None
    score: str  # of the reproduction's
    steps: int = Field(ge=1)
    source: str
    reading: str


class Reproduction(_Part):
    """A published result, its settings, and known differences from the original.

    The starter has rows, or rows and model; else the model and the dataset's splits
    are the hub's, and `columns` names those that become prompt, answer and others.
    """

    name: str
    title: str
    preset: str = ""  # "": the starter's run
    starter: str = ""
    model: str = ""  # "": the starter's
    # Of models that come with Cohort, where they are copied to.
    folder_of_model: str = ""
    dataset: str = ""
    splits: dict[str, str] = {}
    columns: dict[str, str] = {}
    hardware: str
    scores: dict[str, str]  # the metric of each score, the first leads
    published: tuple[Published, ...] = ()
    differs: tuple[str, ...] = ()
    keys: Tree

    @property
    def folder(self) -> Path | None:
        """The starter's."""
        return STARTERS / self.starter if self.starter else None

    @property
    def model_folder(self) -> str:
        """Name of the folder that has the model among those that come with Cohort."""
        return self.folder_of_model or self.starter or self.name

    @property
    def model_endings(self) -> tuple[str, ...]:
        """Ends of the paths and hub names under which a run has the model."""
        names = f"{self.model_folder}/model", self.model.rpartition("/")[2]
        return tuple(f"/{name}" for name in names if name)

    @property
    def summary(self) -> str:
        return "; ".join(map(describe, self.published)) or "No result yet"

    @cached_property
    def settings(self) -> Preset:
        """The preset with the keys, as one preset."""
        if self.preset:
            base = load_preset(self.preset)
            seed, parts = base.seed, base.tree()
        else:
            run = tomllib.loads((STARTERS / self.starter / "run.toml").read_text())
            seed, parts = run.pop("seed"), run
        merged = {part: dict(values) for part, values in parts.items()}
        for part, values in self.keys.items():
            merged[part] = merged.get(part, {}) | values
        return Preset(
            name=self.name,
            title=self.title,
            summary=f"{self.summary}.",
            source="; ".join(result.source for result in self.published),
            notes=self.differs,
            seed=seed,
            parts={part: values for part, values in merged.items() if part in PARTS},
            scaled={},
        )

    def config(
        self, *, model: str = "any", rows: str = "any", seed: int = 0, test: str = ""
    ) -> RunConfig:
        """Give the run of a seed; `test`: the file of the test split."""
        sets = {"evaluation": {"sets": {TEST_SET: test}}} if test else {}
        config = self.settings.config(model=model, rows=rows, changes=sets)
        return config.model_copy(update={"seed": seed})

    def tiny_config(self, *, model: str, rows: str) -> RunConfig:
        """Give 3 steps of the same settings, as small as the starter's rows allow."""
        effective = self.settings.effective()
        parts = {
            part: values | _TINY.get(part, {}) for part, values in effective.items()
        }
        parts["data"] = _TINY_DATA
        optim = parts["optim"]
        optim["minibatches"] = min(optim["minibatches"], 4)
        tiny = self.settings.model_copy(update={"parts": parts})
        return tiny.config(model=model, rows=rows)

    @cached_property
    def _own_config(self) -> RunConfig:
        return self.config()

    def find_changes(self, run: RunConfig) -> list[str] | None:
        """List a run's settings that differ, by path; None: it is another run.

        A run of the reproduction has its model, its reward and its number of steps.
        """
        own = self._own_config
        is_same = (
            run.optim.num_steps == own.optim.num_steps
            and run.model.path.endswith(self.model_endings)
            and run.reward.recipe == own.reward.recipe
        )
        if not is_same or run.phases:
            return None
        mine, theirs = (tree.model_dump(mode="json") for tree in (own, run))
        return [
            path
            for part, names in mine.items()
            if isinstance(names, dict) and part not in _OWN_PARTS
            for name, value in names.items()
            if (path := f"{part}.{name}") not in _OWN and theirs[part][name] != value
        ]


def describe(result: Published) -> str:
    """Write 77.9% strict at step 116, or that only a curve was published."""
    if result.value is None:
        return "Published as a curve"
    value = f"{result.value:.1%}" if result.value <= 1 else f"{result.value:g}"
    return f"{value} {result.score} at step {result.steps:,}"


def reproduction_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@lru_cache
def load_reproduction(name: str) -> Reproduction:
    """Read a reproduction; ValueError names those there are."""
    if name not in reproduction_names():
        raise ValueError(
            f'Unknown reproduction "{name}". Choose one of: '
            f"{', '.join(reproduction_names())}."
        )
    tree = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    about = tree.pop("reproduction")
    if scoring := tree.get("reward", {}).pop("scoring", ""):
        text = (FOLDER / f"{scoring}.json").read_text(encoding="utf-8")
        tree["reward"]["recipe"] = Recipe.model_validate_json(text).model_dump()
    return Reproduction(name=name, **about, keys=tree)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of a reproduction; without: list them")
    parser.add_argument(
        "--show", action="store_true", help="print settings and published results"
    )
    parser.add_argument("--out", type=Path, help="folder for the runs, one a seed")
    parser.add_argument(
        "--seeds",
        type=int,
        default=NUM_SEEDS,
        metavar="N",
        help="number of seeds (default: %(default)s)",
    )
    parser.add_argument("--model", metavar="PATH", help="folder of the model")
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="training rows, JSONL"
    )
    parser.add_argument("--test", type=Path, metavar="FILE", help="test rows, JSONL")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="3 steps of the settings with the starter on the CPU; no accuracy",
    )


def main(args: argparse.Namespace) -> int:
    if args.name is None:
        for name in reproduction_names():
            each = load_reproduction(name)
            print_line(f"{name:<21} {each.summary} ({each.hardware})")
        return 0
    try:
        chosen = load_reproduction(args.name)
        if args.show:
            _show(chosen, args)
            return 0
        if args.out is None or args.seeds < 1:
            raise ValueError(
                "Name a folder for the runs with --out and at least one seed, or use "
                "--show."
            )
        return _try_tiny(chosen, args.out) if args.tiny else _run_seeds(chosen, args)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _show(chosen: Reproduction, args: argparse.Namespace) -> None:
    lines = [chosen.title, f"Model: {chosen.model or chosen.starter}"]
    lines.append(f"Rows: {chosen.dataset or chosen.starter}")
    lines += (f"Split: {name} is {split}" for name, split in chosen.splits.items())
    lines.append(f"Hardware: {chosen.hardware}")
    lines += (f"Score {name}: {metric}" for name, metric in chosen.scores.items())
    for result in chosen.published:
        lines += [
            f"Published: {describe(result)}",
            f"Source: {result.source}",
            f"Reading: {result.reading}",
        ]
    lines += (f"Differs: {sentence}" for sentence in chosen.differs)
    print_line("".join(f"# {line}\n" for line in lines))
    rows = args.rows and str(args.rows.absolute())
    model = args.model or chosen.model or None
    print_line(write_preset(chosen.settings, model=model, rows=rows))


def _try_tiny(chosen: Reproduction, out: Path) -> int:
    starter = STARTERS / "countdown"
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        # Rules that compare numbers find one in each row.
        row | {"answer": str(row["columns"]["target"])}
        for row in _read_rows(starter / "rows.jsonl")
    ]
    _write_rows(out / "rows.jsonl", rows)
    config = chosen.tiny_config(model=str(starter / "model"), rows="rows.jsonl")
    code = _train(config, out)
    if code == 0:
        print_line(
            f"The settings of {chosen.name} ran 3 steps with the starter. This is no "
            "reproduction: it has no accuracy."
        )
    return code


def _run_seeds(chosen: Reproduction, args: argparse.Namespace) -> int:
    out: Path = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    own = chosen.folder
    own_rows, own_model = (own and own / name for name in ("rows.jsonl", "model"))
    files = {"rows": args.rows or own_rows}
    files |= {"test": args.test} if TEST_SET in chosen.splits else {}
    for name, file in files.items():
        if file is None:
            split = chosen.splits["train" if name == "rows" else TEST_SET]
            raise ValueError(
                f"{chosen.name} trains on {chosen.dataset}. Download the split {split} "
                f"as JSONL and name the file with --{name}."
            )
        rows = _read_rows(file)
        _write_rows(out / f"{name}.jsonl", [_renamed(row, chosen) for row in rows])
    results = {}
    for seed in range(args.seeds):
        config = chosen.config(
            model=args.model or chosen.model or str(own_model),
            rows="../rows.jsonl",
            seed=seed,
            test="../test.jsonl" if "test" in files else "",
        )
        folder = out / f"seed-{seed}"
        if code := _train(config, folder):
            return code
        results[seed] = read_scores(chosen, folder)
    _report(chosen, results)
    return 0


def _report(chosen: Reproduction, results: dict[int, dict[str, float | None]]) -> None:
    for seed, scores in results.items():
        print_line(f"seed {seed}: {_listed(scores)}")
    values = [list(scores.values()) for scores in results.values()]
    means = {
        name: sum(numbers) / len(numbers)
        for name, column in zip(chosen.scores, zip(*values, strict=True), strict=True)
        if len(numbers := [value for value in column if value is not None])
    }
    print_line(f"mean of {len(results)}: {_listed(means)}")
    print_line(f"Published: {chosen.summary}.")
    print_line(
        "For the 95% interval and the verdict, import events.jsonl of each seed into "
        "Cohort and open Reproductions."
    )


def _listed(scores: Mapping[str, float | None]) -> str:
    return ", ".join(
        f"{name} {'–' if value is None else format(value, '.4f')}"
        for name, value in scores.items()
    )


def _renamed(row: dict[str, Any], chosen: Reproduction) -> dict[str, Any]:
    """Give a dataset's row the names of the engine; a row that has them stays."""
    try:
        if "prompt" in row or not chosen.columns:
            return row
        named = {name: row[column] for name, column in chosen.columns.items()}
    except (LookupError, TypeError):
        raise ValueError(
            f"{chosen.name} needs rows with {', '.join(chosen.columns.values())}; got "
            f"{json.dumps(row)[:80]}."
        ) from None
    prompt, answer = named.pop("prompt", ""), named.pop("answer", None)
    return {"prompt": prompt or "Countdown", "answer": answer, "columns": named}


def _train(config: RunConfig, folder: Path) -> int:
    """Run it in a process of its own, which also resumes it, unless it has finished.

    Returns:
        The exit code.

    Raises:
        ValueError: the folder has another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "config.json", folder / NAME
    if log.exists() and RunConfig.model_validate_json(file.read_bytes()) != config:
        raise ValueError(
            f"{folder} has a run with other settings or another model. Name another "
            "folder with --out."
        )
    if any(isinstance(event, RunFinished) for event in _events(folder)):
        return 0
    file.write_text(config.model_dump_json(indent=2), encoding="utf-8")
    command = [sys.executable, "-m", "trainer", "run", str(file), "--out", str(folder)]
    command += ["--resume"] if log.exists() else []
    with subprocess.Popen(command) as trainer:
        # A terminal's Ctrl-C has reached the trainer too.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: trainer.terminate())
        return trainer.wait()


def _events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run's last attempt; a line that was cut off is none."""
    with suppress(FileNotFoundError), (folder / NAME).open("rb") as lines:
        yield from (parse_event(line) for line in lines if line.endswith(b"\n"))


def read_scores(chosen: Reproduction, folder: Path) -> dict[str, float | None]:
    """Return the scores that a run's log has last."""
    last: dict[str, float | None] = {}
    for event in _events(folder):
        if isinstance(event, Evaluated | StepFinished):
            last |= event.metrics
    return {name: last.get(metric) for name, metric in chosen.scores.items()}


def _read_rows(file: Path) -> list[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise ValueError(f"{file} has other rows. Name another folder with --out.")
    file.write_text(text, encoding="utf-8")
