"""Tinker cookbook: `iteration_<number>/` in the log folder, numbered from 0.

`train_rollout_summaries.jsonl` has a line a trajectory: rewards and lengths, no text.
`train_logtree.json` has texts of the first groups (`num_groups_to_log`) of
environments that log them, such as ProblemEnv, in the order in which episodes ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cohort.formats.files import Format, Part, Rollout, read_lines, tree_of
from cohort.lines import Completion, mean, number, rule_name, text_of

Episode = tuple[str, str, str]  # reward, as it is written; prompt; response


class Tinker(Format):
    name = "tinker"
    tool = "Tinker cookbook"
    step_name = re.compile(r"iteration_(\d{1,9})")
    inner = "train_rollout_summaries.jsonl"
    keys = frozenset({"group_idx", "traj_idx", "total_reward"})
    first_step = 0
    settings_path = "config.json"
    metrics_path = "metrics.jsonl"
    notes = (
        "The Tinker cookbook writes rewards and lengths of all completions, but texts "
        "only of the first groups of an iteration (num_groups_to_log). In a group, "
        "texts with equal rewards may be swapped."
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._episodes: tuple[Part | None, dict[int, list[Episode]]] = (None, {})

    def rollouts(self, tree: dict[str, Any], part: Part) -> Sequence[Rollout]:
        if self._episodes[0] != part:
            self._episodes = part, _read_episodes(part)
        iteration, group, steps = tree["iteration"], tree["group_idx"], tree["steps"]
        reward = number(tree["total_reward"])
        episodes = self._episodes[1].get(group, [])
        episode = next((e for e in episodes if e[0] == f"{reward:.3f}"), None)
        if episode:
            episodes.remove(episode)
        tags = ", ".join(map(str, tree.get("tags") or ()))
        unknown = f"{tags}: iteration {iteration}, group {group}; no text is written"
        # Others of a group may have none.
        _, prompt, response = episode or ("", unknown, "")
        measured = [step.get("metrics") or {} for step in steps]
        names = dict.fromkeys(name for metrics in measured for name in metrics)
        scores = {
            name: [s for m in measured if (s := number(m.get(name))) is not None]
            for name in names
        }
        completion = Completion(
            text=response,
            reward=reward,
            rules={rule_name(name): mean(values) for name, values in scores.items()},
            num_tokens=sum(int(step["ac_len"]) for step in steps),
        )
        return [Rollout(group=f"{group}", prompt=prompt, completion=completion)]


def _read_episodes(part: Part) -> dict[int, list[Episode]]:
    """Return texts by group. The log names no group: it is the one whose trajectories
    have as many tokens.
    """
    lengths: dict[int, list[str]] = {}
    episodes: dict[int, list[Episode]] = {}
    with suppress(OSError, TypeError, LookupError, AttributeError, ValueError):
        for tree in map(tree_of, read_lines(part)):
            steps = [str(step["ac_len"]) for step in tree["steps"]]
            lengths.setdefault(int(tree["group_idx"]), []).extend(steps)
        log = tree_of(part.path.with_name("train_logtree.json").read_bytes())
        for section in _walk(log["root"]):
            title = next(iter(section["children"]), None)
            if isinstance(title, dict) and title["children"] == ["Group Rollout"]:
                logged, written = _read_group(section)
                same = [g for g, num in lengths.items() if num == logged]
                if new := [group for group in same if group not in episodes]:
                    episodes[new[0]] = written
    return episodes


def _read_group(section: dict[str, Any]) -> tuple[list[str], list[Episode]]:
    """Return lengths by trajectory and turn, and texts by the end of their episode."""
    lengths, episodes = [], []
    prompt = response = key = ""
    for node in _walk(section):
        if messages := (node.get("data") or {}).get("messages"):
            if messages[-1]["role"] == "assistant":
                response = text_of(messages)
            else:
                prompt = text_of(messages)
        elif node["tag"] == "td":
            value = "".join(node["children"])
            if key == "reward":
                episodes.append((value, prompt, response))
            elif key == "ac_len":
                lengths.append(value)
            key = "" if key else value
    return lengths, episodes


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _walk(child)
