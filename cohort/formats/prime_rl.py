"""prime-rl: `rollouts/step_<step>/train/effective/traces.jsonl` in the run's folder.

Its FileMonitor writes an episode of verifiers a line, with the traces of its agents. A
trace is a tree of messages; each has its parent, ids and mask of its tokens, and
log-probs and advantages of those that were sampled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cohort.formats.files import Format, Part, Rollout
from cohort.lines import (
    Completion,
    answer_of,
    mean,
    number,
    rule_name,
    text_of,
    turns_of,
)

EndReason = Literal["unknown", "failed", "turns", "length", "done"]
OTHER_BRANCHES = "other_branches"  # of a trace, which has several if history changed
# Of traces by what stopped them; a task may have conditions of its own.
STOPS: dict[str, EndReason] = {
    "None": "unknown",
    "error": "failed",
    "max_turns": "turns",
    "max_input_tokens": "length",
    "max_output_tokens": "length",
    "max_total_tokens": "length",
    "context_length": "length",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The longest branch of a trace, and scores."""

    prompt: list[dict[str, Any]]  # messages before the first that was sampled
    said: list[dict[str, Any]]  # messages from there on, with what the model thought
    num_ids: list[int]  # tokens of each; 0: they are not written
    num_sampled: list[int]
    scores: dict[str, float | None]
    reward: float | None
    advantage: float | None
    logprob: float | None  # mean
    answer: Any
    end_reason: EndReason


def read_trace(values: dict[str, Any]) -> Trace:
    """Read a trace of verifiers 0.4. LookupError, TypeError, AttributeError, ValueError
    or OverflowError: it is none in which a model said something.
    """
    branch, num_branches = _longest_branch(values["nodes"])
    first = [node.get("sampled") for node in branch].index(True)
    nodes = branch[first:]
    logprob, advantage = (
        mean([float(value) for node in nodes for value in node.get(name) or ()])
        for name in ("logprobs", "advantages")
    )
    scores = {
        rule_name(name): number(reward["score"] * reward.get("weight", 1.0))
        for name, reward in values["rewards"].items()
        if reward is not None
    }
    total = sum(score for score in scores.values() if score is not None)
    return Trace(
        prompt=[node["message"] for node in branch[:first]],
        said=[_with_thoughts(node["message"]) for node in nodes],
        num_ids=[len(node.get("token_ids") or ()) for node in nodes],
        num_sampled=[sum(map(bool, node.get("mask") or ())) for node in nodes],
        scores=scores | {OTHER_BRANCHES: num_branches - 1.0 or None},
        reward=total if scores else None,
        advantage=number(advantage),
        logprob=number(logprob),
        answer=values["task"]["data"].get("answer"),
        end_reason=STOPS.get(str(values.get("stop_condition")), "done"),
    )


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    thought = message.get("reasoning_content")
    text = f"<think>\n{thought}\n</think>\n\n{message.get('content') or ''}"
    return {**message, "content": text} if thought else message


def _longest_branch(nodes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the path with the most tokens from a root to a leaf, and the number of
    leaves. LookupError where a message follows none before it.
    """
    sizes: dict[int | None, int] = {None: 0}  # of the path to each message
    for i, node in enumerate(nodes):
        sizes[i] = sizes[node.get("parent")] + (len(node.get("token_ids") or ()) or 1)
    parents = {node.get("parent") for node in nodes}
    leaves = [i for i in range(len(nodes)) if i not in parents]
    at: int | None = max(leaves, key=sizes.__getitem__)
    path: list[dict[str, Any]] = []
    while at is not None:
        path.append(nodes[at])
        at = nodes[at].get("parent")
    return path[::-1], len(leaves)


class PrimeRl(Format):
    name = tool = "prime-rl"
    place = "rollouts"
    step_name = re.compile(r"step_(\d{1,9})")
    inner = "train/effective/traces.jsonl"
    keys = frozenset({"task", "traces"})
    is_appended = True
    settings_path = "configs/rl.json"
    metrics_path = "metrics.jsonl"
    last_metric = "optim/"  # the trainer's, a step behind the orchestrator's
    rules: ClassVar = {OTHER_BRANCHES: 0.0}

    def rollouts(self, tree: dict[str, Any], part: Part) -> Sequence[Rollout]:
        group = (tree.get("group") or {}).get("id")
        trained = [t for t in tree["traces"] if t["agent"].get("trainable", True)]
        return [
            # Of several agents, each has prompts of its own.
            _rollout(
                trace, group=f"{group} {trace['agent'].get('name')}" if group else ""
            )
            for trace in trained
            if any(node.get("sampled") for node in trace.get("nodes", ()))
        ]


def _rollout(values: dict[str, Any], *, group: str) -> Rollout:
    trace = read_trace(values)
    turns = turns_of(trace.said)
    ends: dict[str, bool | None] = {"unknown": None, "failed": None, "length": True}
    return Rollout(
        group=group,
        prompt=text_of(trace.prompt),
        answer=answer_of(trace.answer),
        completion=Completion(
            text="" if turns else text_of(trace.said),
            turns=turns,
            reward=trace.reward,
            rules={n: s for n, s in trace.scores.items() if s is not None},
            advantage=trace.advantage,
            num_tokens=sum(trace.num_sampled) if all(trace.num_ids) else None,
            is_truncated=ends.get(trace.end_reason, False),
        ),
    )
