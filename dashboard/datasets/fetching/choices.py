"""Splits and files of a hub dataset: found there, and the one that was chosen."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

from dashboard.datasets.fetching.http import NotFetched
from dashboard.datasets.fetching.hub import CONVERTED, Commit, Hub, HubFile
from dashboard.datasets.fetching.links import HubLink
from dashboard.datasets.parsing.detection import PACKED_SUFFIXES, SUFFIXES

MAIN = "main"
MAX_CHOICES = 500
MAX_LISTED_FILES = 10_000  # of all choices together, each with its path and hashes
MAX_PARTS = 500  # files of one split
MAX_NAME_CHARS = 200
MAX_UNREAD = 5  # splits that a sentence names
# Files that describe a dataset, and hold no rows.
METADATA_NAMES = {
    *("dataset_infos.json", "dataset_info.json", "state.json", "package.json")
}
# Words of file names by which the hub tells splits.
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# Of a README, whose author may mean harm; 1,000 patterns among 5,000 files take 15 s.
MATCH_SECONDS = 30.0
_CONVERTED = re.compile(r"([^/]+)/([^/]+)/\d+\.parquet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """
    >>> Choice(name="main/train", is_split=True, sha="e53f…", files=(train,))
    """

    name: str
    is_split: bool
    revision: str  # whose commit it is
    sha: str
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Choice:
        """Read what `as_json` made."""
        files = tuple(HubFile(**file) for file in tree["files"])
        return cls(**{**tree, "files": files})


@dataclass(frozen=True, kw_only=True, slots=True)
class HubContents:
    dataset: str
    choices: list[Choice]
    num_choices: int  # more than are listed, where the list was cut
    remark: str
    picked: Choice | None

    def as_json(self) -> dict[str, Any]:
        """Return what an upload keeps of it, until one is chosen."""
        return {
            "choices": [choice.as_json() for choice in self.choices],
            "num_choices": self.num_choices,
            "remark": self.remark,
            "chosen": self.picked.as_json() if self.picked else None,
        }


def find_choices(hub: Hub, link: HubLink) -> HubContents:
    """NotFetched where there is nothing that could be read."""
    revision = link.revision or MAIN
    commit = hub.find(link.dataset, revision)
    files = single_files(commit, revision)
    named = next((file for file in files if file.name == link.part.strip("/")), None)
    splits, unread = ([], "") if named else splits_of_card(commit, revision)
    if (unread or not splits) and not (named or link.revision):
        # Splits that the hub made of it, where it has.
        try:
            conversion = hub.find(commit.dataset, CONVERTED)
            converted = splits_of_conversion(conversion, CONVERTED)
        except NotFetched as error:
            if error.status not in (401, 403, 404):
                raise
        else:
            splits, unread = converted if converted[0] else (splits, unread)
    choices = [*splits, *files]
    if not choices:
        raise NotFetched(
            f"{commit.dataset} at {revision} has {len(commit.files):,} files, but none "
            "is JSONL, JSON, CSV, TSV or Parquet. Enter the URL of another file, or "
            "upload one."
        )
    # What could not be read may be what is trained on, beside a test split.
    picked = pick(choices, link.part) if link.part or not unread else None
    missed = link.part and picked is None
    # As many as a page should hold, and the database for as long as it is waited.
    num_files = accumulate(len(choice.files) for choice in choices)
    num_listed = sum(1 for so_far in num_files if so_far <= MAX_LISTED_FILES)
    return HubContents(
        dataset=commit.dataset,
        choices=[] if picked else choices[: min(num_listed, MAX_CHOICES)],
        num_choices=len(choices),
        remark=f"“{link.part}” matches no split or file, or several."
        if missed
        else unread,
        picked=picked,
    )


def splits_of_card(commit: Commit, revision: str) -> tuple[list[Choice], str]:
    """Splits that the README names, made of the dataset's own files, and a sentence on
    those that cannot be read. NotFetched where that takes too long.
    """
    until = time.monotonic() + MATCH_SECONDS
    printable = (
        (name, files)
        for name, files in _named_files(commit, until)
        # What no page can show, no column can hold either.
        if name.isprintable() and len(name) <= MAX_NAME_CHARS
    )
    return _splits(printable, commit, revision)


def splits_of_conversion(commit: Commit, revision: str) -> tuple[list[Choice], str]:
    """Splits of the branch that holds config/split/0000.parquet."""
    splits: dict[str, list[HubFile]] = {}
    for file in sorted(commit.files, key=lambda file: file.path):
        if match := _CONVERTED.fullmatch(file.path):
            splits.setdefault(f"{match[1]}/{match[2]}", []).append(file)
    return _splits(splits.items(), commit, revision)


def _splits(
    candidates: Iterable[tuple[str, list[HubFile]]], commit: Commit, revision: str
) -> tuple[list[Choice], str]:
    splits, unread = [], []
    for name, files in candidates:
        if files and can_join(files):
            splits.append(
                Choice(
                    name=name,
                    is_split=True,
                    revision=revision,
                    sha=commit.sha,
                    files=tuple(files),
                )
            )
        elif files:
            unread.append(f"{name} ({_describe(files)})")
    listed = ", ".join(unread[:MAX_UNREAD])
    more = f" and {len(unread) - MAX_UNREAD:,} more" if len(unread) > MAX_UNREAD else ""
    return splits, f"Cannot read the splits {listed}{more}." if unread else ""


def _describe(files: list[HubFile]) -> str:
    """Describe the files of a split.

    >>> _describe([HubFile(path="a.csv", …), HubFile(path="b.csv", …)])
    '2 files: .csv'
    """
    suffixes = sorted(
        {"".join(PurePosixPath(file.path).suffixes[-2:]) for file in files}
    )
    num_files = f"{len(files):,} file{'s' * (len(files) != 1)}"
    return f"{num_files}: {', '.join(suffixes[:MAX_UNREAD]) or 'no suffix'}"


def single_files(commit: Commit, revision: str) -> list[Choice]:
    return [
        Choice(
            name=file.path,
            is_split=False,
            revision=revision,
            sha=commit.sha,
            files=(file,),
        )
        for file in commit.files
        if file.num_bytes
        and _kind_of(file)[0]
        and PurePosixPath(file.path).name not in METADATA_NAMES
        and not file.path.startswith(".")
    ]


def pick(choices: list[Choice], part: str) -> Choice | None:
    """Pick the requested choice, or the only one."""
    if part:
        name = part.strip("/")
        exact = [choice for choice in choices if choice.name == name]
        splits = [
            choice
            for choice in choices
            if choice.is_split and choice.name.rpartition("/")[2] == name
        ]
        matches = exact or splits
        return matches[0] if len(matches) == 1 or exact else None
    splits = [choice for choice in choices if choice.is_split]
    only = splits or choices
    return only[0] if len(only) == 1 else None


def can_join(files: Iterable[HubFile]) -> bool:
    """Test for one file, or several of one kind that make one: Parquet, or plain
    JSONL.
    """
    kinds = [_kind_of(file) for file in files]
    if len(kinds) == 1:
        return bool(kinds[0][0])
    is_one = len(set(kinds)) == 1 and len(kinds) <= MAX_PARTS
    return is_one and kinds[0] in (("parquet", ""), ("jsonl", ""))


def _kind_of(file: HubFile) -> tuple[str, str]:
    """Format and packing, by the name; the format is empty where nothing reads it."""
    path = PurePosixPath(file.path)
    packing = PACKED_SUFFIXES.get(path.suffix.lower(), "")
    if packing:
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix.lower(), ""), packing


def _named_files(commit: Commit, until: float) -> Iterator[tuple[str, list[HubFile]]]:
    configs = commit.card.get("configs")
    for config in configs if isinstance(configs, list) else []:
        if not isinstance(config, dict):
            continue
        name, files = config.get("config_name") or "default", config.get("data_files")
        folder = config.get("data_dir")
        inside = f"{folder.strip('/')}/" if isinstance(folder, str) else ""
        if isinstance(files, list) and any(isinstance(entry, dict) for entry in files):
            for entry in files:
                if isinstance(entry, dict):
                    patterns = _texts(entry.get("path"), inside)
                    split = entry.get("split") or "train"
                    yield f"{name}/{split}", _matching(commit, patterns, until)
        elif files is None and inside:
            _check_time(commit, until)
            for split, of_split in _split_by_names(commit, inside).items():
                yield f"{name}/{split}", of_split
        else:
            yield f"{name}/train", _matching(commit, _texts(files, inside), until)


def _split_by_names(commit: Commit, folder: str) -> dict[str, list[HubFile]]:
    """Files of a folder by the split that their names tell; train where none does."""
    splits: dict[str, list[HubFile]] = {}
    for file in commit.files:
        if file.path.startswith(folder) and _kind_of(file)[0]:
            words = re.split(r"[^a-z]+", file.path.removeprefix(folder).lower())
            split = next(
                (SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), ""
            )
            splits.setdefault(split, []).append(file)
    rest = splits.pop("", [])
    return splits or {"train": rest}


def _texts(value: Any, inside: str = "") -> list[str]:
    listed = value if isinstance(value, list) else [value]
    texts = [inside + text for text in listed[:MAX_PARTS] if isinstance(text, str)]
    return [text for text in texts if len(text) <= 300 and text.count("**") <= 2]


def _matching(commit: Commit, patterns: list[str], until: float) -> list[HubFile]:
    matches: dict[str, HubFile] = {}
    for pattern in patterns:
        parts = tuple(pattern.split("/"))
        for file in commit.files:
            _check_time(commit, until)
            if _matches(tuple(file.path.split("/")), parts):
                matches[file.path] = file
    return [matches[path] for path in sorted(matches)]


def _check_time(commit: Commit, until: float) -> None:
    if time.monotonic() > until:
        raise NotFetched(
            f"Matching the splits in the README of {commit.dataset} with its "
            f"{len(commit.files):,} files took over {MATCH_SECONDS:g} s. Enter the "
            "path of one file under “Split or file”."
        )


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Match as the hub's own globs: a star stays within a folder, two do not."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        rest = pattern[1:]
        return _matches(path, rest) or bool(path and _matches(path[1:], pattern))
    if not path or not fnmatchcase(path[0], pattern[0]):
        return False
    return _matches(path[1:], pattern[1:])
