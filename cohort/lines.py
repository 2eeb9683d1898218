"""A trainer's reports as lines of the event log, one JSON object each.

Line number and attempt are added when a line is sent, because the server assigns the
attempt. Metrics of other trainers get Cohort's names.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Any, Literal

# Only metrics with the same meaning are renamed. Not TRL's `reward_std`, the deviation
# over the batch or within groups depending on the version; not verl's `actor/pg_loss`,
# a part of the loss, nor `perf/throughput`, which counts prompt tokens per GPU.
_TRL = {
    "reward": "reward/mean",
    "frac_reward_zero_std": "group/frac_zero_std",
    "kl": "kl/mean",
    "learning_rate": "lr",
    "completions/mean_length": "completion/mean_length",
    "completions/max_length": "completion/max_length",
    "completions/clipped_ratio": "completion/frac_truncated",
    "completion_length": "completion/mean_length",
    "clip_ratio/low_mean": "clip/frac_low",
    "clip_ratio/high_mean": "clip/frac_high",
    "step_time": "time/step",
    "tools/call_frequency": "episode/num_tool_calls",
    "tools/failure_frequency": "episode/frac_tool_errors",
}
_OTHERS = {  # verl, prime-rl and the Tinker cookbook
    "critic/score/mean": "reward/mean",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/kl_loss": "kl/mean",
    "response_length/mean": "completion/mean_length",
    "response_length/max": "completion/max_length",
    "response_length/clip_ratio": "completion/frac_truncated",
    "timing_s/gen": "time/generate",
    "timing_s/reward": "time/score",
    "timing_s/old_log_prob": "time/logprobs",
    "timing_s/update_actor": "time/update",
    "timing_s/step": "time/step",
    "optim/lr": "lr",
    "optim/grad_norm": "grad_norm",
    "optim/entropy": "entropy",
    "entropy/all/mean": "entropy",
    "loss/mean": "loss",
}
_TRL_RULE = re.compile(r"rewards/(.+)/mean")


# Where loggers write a row's step. The trainer's own comes before W&B's, which counts
# calls of log().
STEPS = (
    "train/global_step",
    "training/global_step",
    "trainer/global_step",
    "global_step",
    "Step",
    "_step",
    "step",
)


def metric_name(name: str) -> str:
    """Cohort's name for it, or itself if unknown. TRL prefixes names with "train/"."""
    if known := _OTHERS.get(name):
        return known
    bare = name.removeprefix("train/")
    if bare in _TRL:
        return _TRL[bare]
    if rule := _TRL_RULE.fullmatch(bare):
        return f"reward/{rule_name(rule[1])}/mean"
    return bare


def rule_name(column: str) -> str:
    """Truncated to the server's limit."""
    return column[:40]


# The server accepts 16 MiB and leaves out longer lines.
MAX_LINE_BYTES = 15 * 2**20
MAX_TEXT = 200_000  # characters of one completion
Author = Literal["policy", "environment", "tool"]
_AUTHORS: dict[str, Author] = {"assistant": "policy", "tool": "tool"}  # by role
# What stands before and behind results of tools; before them there is a group.
_MARKS = re.compile(
    r"((?:\n?(?:user|tool)\n)?<tool_response>\n)"
    r"|\n</tool_response>\n*(?:assistant\n)?"
)


def encode(tree: Mapping[str, Any]) -> bytes:
    """Return one line with its newline. Numbers that are not finite become null."""
    text = json.dumps(plain(tree), ensure_ascii=False, separators=(",", ":"))
    # "replace": a decoder may leave a lone surrogate, which UTF-8 cannot encode.
    line = text.encode("utf-8", "replace")
    if len(line) > MAX_LINE_BYTES:
        return encode(left_out(tree, len(line)))
    return line + b"\n"


def left_out(tree: Mapping[str, Any], num_bytes: int) -> dict[str, Any]:
    """Return a warning in place of a line that the server or a proxy refuses as too
    large.
    """
    return {
        "type": "warned",
        "time": tree["time"],
        "step": tree["step"],
        "code": "line_too_long",
        "message": f"Left out {tree['type']} of step {tree['step']}: {num_bytes:,} "
        "bytes are too many for one line.",
    }


def number_line(line: bytes, *, number: int, attempt: int) -> bytes:
    """Add the line number and attempt that the server requires."""
    return b'{"line":%d,"attempt":%d,' % (number, attempt) + line.lstrip(b"{")


def plain(value: Any) -> Any:
    """Get a JSON value; other types, such as NumPy scalars, become a number or text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        return plain(float(value))
    except (TypeError, ValueError):
        return str(value)


def number(value: Any) -> float | None:
    """Read a number; None if it is missing, unreadable or not finite."""
    if value is None:
        return None
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A turn of an episode; None means unknown."""

    author: Author
    text: str
    name: str = ""  # of the tool
    start: int = 0  # where its text stands in the completion's, if that has one
    seconds: float | None = None  # that the environment took
    reward: float | None = None
    # The policy's calls that the turn answers: name, arguments, result, error.
    calls: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A completion of a prompt; None means unknown."""

    text: str = ""  # if empty, it is made of the turns
    turns: Sequence[Turn] = ()  # of an episode
    reward: float | None = None
    rules: Mapping[str, float | None] = field(default_factory=dict)
    advantage: float | None = None
    num_tokens: int | None = None
    is_truncated: bool | None = None


def answer_of(value: Any) -> str | list[str] | None:
    """Return a dataset's answer: text as it is, other values as JSON; of a list, any is
    right.

    >>> answer_of(["4", "four"])
    ['4', 'four']
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        texts = [text if isinstance(text, str) else _as_json(text) for text in value]
        return texts if len(texts) > 1 else next(iter(texts), None)
    return _as_json(value)


def _as_json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False)


def text_of(messages: Any) -> str:
    """Return a prompt or completion as text: several messages with their roles.

    >>> text_of([{"role": "user", "content": "1 + 1?"}])
    '1 + 1?'
    """
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list | tuple) or not messages:
        return "" if not messages else str(messages)
    values = [_role_and_content(message) for message in messages]
    if len(values) == 1:
        return values[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in values)


def _role_and_content(message: Any) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        return "", str(message)
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(map(part_text, content))
    calls = [f"{call['name']}({call['arguments']})" for call in _calls_of(message)]
    text = "" if content is None else str(content)
    return str(message.get("role", "")), "\n".join(filter(None, [text, *calls]))


IMAGE = "\u27e6image"  # begins what stands for an image in a text
IMAGE_TYPES = ("image", "image_url", "input_image")
_IMAGE_KEYS = ("image", "image_url", "source", "url", "bytes", "data", "path")


def part_text(part: Any) -> str:
    """Return the text of a part of a message. That of an image has its size in pixels
    and the beginning of its SHA-256, if the part has the image or its address.
    """
    if isinstance(part, str) or not isinstance(part, Mapping):
        return part if isinstance(part, str) else ""
    text = part.get("text")
    if part.get("type") not in IMAGE_TYPES:
        return text if isinstance(text, str) else ""
    image: Any = part
    while isinstance(image, Mapping):
        image = next(
            (image[key] for key in _IMAGE_KEYS if image.get(key) is not None), None
        )
    data, size = _image_bytes(image), getattr(image, "size", None)  # of PIL's images
    pixels = size if isinstance(size, tuple) else _pixels(data)
    facts = [" \u00d7 ".join(map(str, pixels))] if pixels else []
    facts += [sha256(data).hexdigest()[:12]] if data else []
    return " ".join([IMAGE, *filter(None, [", ".join(facts)])]) + "\u27e7"


def _image_bytes(image: Any) -> bytes:
    if isinstance(image, str) and image.startswith("data:"):
        with suppress(ValueError):
            image = b64decode(image.partition(",")[2])
    if isinstance(image, str):  # an address
        image = image.encode("utf-8", "replace")
    elif hasattr(image, "tobytes"):
        image = image.tobytes()
    return image if isinstance(image, bytes) else b""


def _pixels(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG or JPEG; None of another file."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    at = 2 if data[:2] == b"\xff\xd8" else len(data)
    while at + 9 <= len(data) and data[at] == 0xFF:
        # The frame's header; 0xC4, 0xC8 and 0xCC are others.
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            height, width = (int.from_bytes(data[n : n + 2]) for n in (at + 5, at + 7))
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def turns_of(messages: Any) -> list[Turn]:
    """Return the turns of a completion of several messages; none of another."""
    turns: list[Turn] = []
    calls: list[dict[str, Any]] = []  # that no result answers yet
    for message in messages if isinstance(messages, list | tuple) else ():
        role, text = _role_and_content(message)
        if role == "assistant":
            calls = _calls_of(message)
        # TRL names the tool, others the call.
        key = role == "tool" and (message.get("tool_call_id") or message.get("name"))
        answered = [c for c in calls if key and key in (c["id"], c["name"])][:1]
        calls = [call for call in calls if not any(call is c for c in answered)]
        # As TRL writes a tool that raises.
        result = "error" if text.startswith("{'error': ") else "result"
        turns.append(
            Turn(
                author=_AUTHORS.get(role, "environment"),
                name=str(answered[0]["name"] if answered else key or ""),
                text=text,
                calls=[call | {result: text} for call in answered],
            )
        )
    return turns if len(turns) > 1 else []


def _calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return id, name and arguments of the tools that a message calls."""
    listed = message.get("tool_calls")
    calls = [
        (call.get("id"), inner if isinstance(inner, Mapping) else call)
        for call in (listed[:1_000] if isinstance(listed, list | tuple) else ())
        if isinstance(call, Mapping)
        for inner in [call.get("function")]
    ]
    return [
        {"id": call_id, "name": str(call.get("name", "")), "arguments": text}
        for call_id, call in calls
        for value in [call.get("arguments")]
        for text in [value if isinstance(value, str) else _as_json(value)]
    ]


def guess_turns(text: str) -> list[Turn]:
    """Return turns by the marks that Qwen's templates put around results of tools.

    verl writes an episode as one text without special tokens. The policy may write
    such marks itself, so the name tells that these turns are guessed.
    """
    marks = list(_MARKS.finditer(text))
    if not marks or [bool(mark[1]) for mark in marks] != [True, False] * (
        len(marks) // 2
    ):
        return []
    starts = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    return [
        Turn(author="tool", name="tool (guessed)", text=text[start:end], start=start)
        if i % 2
        else Turn(author="policy", text=text[start:end], start=start)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
        if i % 2 or text[start:end].strip()
    ]


def turns_by_mask(
    ids: Sequence[int], mask: Sequence[float], decode: Callable[[Sequence[int]], str]
) -> list[Turn]:
    """Return runs of sampled tokens as turns of the policy, others as those of the
    environment; none if there is one run. `mask`: 1 on sampled tokens.
    """
    turns: list[Turn] = []
    at = 0
    for is_sampled, run in groupby(map(bool, mask)):
        start, at = at, at + len(list(run))
        author: Author = "policy" if is_sampled else "environment"
        turns.append(Turn(author=author, text=decode(ids[start:at])))
    return turns if len(turns) > 1 else []


def write_turns(completion: Completion) -> tuple[str, list[dict[str, Any]]]:
    """Return the completion's text, and its turns by where they stand in it."""
    text, trees = completion.text, []
    for turn in completion.turns:
        start = turn.start
        if not completion.text:
            text += ("\n\n" if text else "") + f"{turn.name or turn.author}: "
            start = len(text)
            text += turn.text
        trees.append(
            {
                "author": turn.author,
                "name": turn.name,
                "start": start,
                "end": start + len(turn.text),
                "seconds": number(turn.seconds),
                "reward": number(turn.reward),
                "calls": [
                    {
                        key: str(call.get(key, ""))[:2_000]
                        for key in ("name", "arguments", "result", "error")
                    }
                    for call in turn.calls
                ],
            }
        )
    return text, trees


def group_tree(
    prompt: str,
    prompt_index: int,
    completions: Sequence[Completion],
    *,
    answer: str | Sequence[str] | None,
    right_from: float | None,
    lowest: float | None,
) -> dict[str, Any]:
    """`lowest`: the lowest reward of the run so far."""
    rewards = [number(completion.reward) for completion in completions]
    scored = [reward for reward in rewards if reward is not None]
    ends = {None: "unknown", True: "length", False: "stop"}
    return {
        "type": "group_scored",
        "prompt_index": prompt_index,
        "prompt": prompt[:MAX_TEXT],
        "answer": answer,
        "reward_mean": mean(scored),
        "reward_std": std(scored),
        "signal": signal_of(scored, right_from=right_from, lowest=lowest),
        "completions": [
            {
                "text": text[:MAX_TEXT],
                "num_tokens": completion.num_tokens,
                "end_reason": ends[completion.is_truncated],
                "reward": number(completion.reward),
                "rules": {
                    str(name)[:40]: number(s) for name, s in completion.rules.items()
                },
                "advantage": number(completion.advantage),
                "mean_logprob": None,
            }
            | ({"turns": turns} if turns else {})
            for completion in completions
            for text, turns in [write_turns(completion)]
        ],
    }


def signal_of(
    scored: Sequence[float], *, right_from: float | None, lowest: float | None
) -> Literal["mixed", "all_right", "all_wrong", "tied", "unscorable"]:
    """Return whether a group's rewards differ; `lowest` is the lowest reward of the
    run.
    """
    if not scored:
        return "unscorable"
    if min(scored) < max(scored):
        return "mixed"
    if right_from is None:
        return "tied"
    if scored[0] >= right_from:
        return "all_right"
    return "all_wrong" if scored[0] == lowest else "tied"


def metrics_of(groups: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return a step's metrics from its groups; lengths only if all are known.

    They precede what a trainer logs, which may be a mean over several steps.
    """
    if not groups:
        return {}
    completions = [c for group in groups for c in group["completions"]]
    rewards = [c["reward"] for c in completions if c["reward"] is not None]
    spreads = [g["reward_std"] for g in groups if g["reward_std"] is not None]
    count = Counter(group["signal"] for group in groups)
    num = len(groups)
    deciles = rewards
    if len(rewards) > 1:
        deciles = statistics.quantiles(rewards, n=10, method="inclusive")
    metrics = {
        "reward/mean": mean(rewards),
        "reward/std": std(rewards),
        "reward/p10": deciles[0] if deciles else None,
        "reward/p90": deciles[-1] if deciles else None,
        "group/std_mean": mean(spreads),
        "group/frac_zero_std": 1 - count["mixed"] / num,
        "group/frac_all_max": count["all_right"] / num,
        "group/frac_all_min": count["all_wrong"] / num,
        "group/frac_tied": count["tied"] / num,
        "group/frac_unscorable": count["unscorable"] / num,
        "group/num_effective": float(count["mixed"]),
        "sampling/num_completions": float(len(completions)),
    }
    for name in dict.fromkeys(name for c in completions for name in c["rules"]):
        scores = [s for c in completions if (s := c["rules"].get(name)) is not None]
        metrics[f"reward/{name}/mean"] = mean(scores)
    metrics |= _completion_metrics(completions)
    return {name: value for name, value in metrics.items() if value is not None}


def _completion_metrics(
    completions: Sequence[Mapping[str, Any]],
) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    advantages = [abs(a) for c in completions if (a := c["advantage"]) is not None]
    if advantages:
        metrics["advantage/abs_mean"] = mean(advantages)
    lengths = [n for c in completions if (n := c["num_tokens"]) is not None]
    if lengths and len(lengths) == len(completions):
        metrics["completion/mean_length"] = mean(lengths)
        metrics["completion/max_length"] = float(max(lengths))
        metrics["sampling/num_tokens"] = float(sum(lengths))
    ends = [c["end_reason"] for c in completions]
    if ends and "unknown" not in ends:
        metrics["completion/frac_truncated"] = ends.count("length") / len(ends)
    return metrics | _episode_metrics([c.get("turns") or [] for c in completions])


def _episode_metrics(episodes: Sequence[Sequence[Any]]) -> dict[str, float | None]:
    if not any(episodes):
        return {}
    # A completion without turns is one of the policy.
    nums = [sum(turn["author"] == "policy" for turn in t) if t else 1 for t in episodes]
    calls = [call for turns in episodes for turn in turns for call in turn["calls"]]
    return {
        "episode/num_turns": mean(nums),
        "episode/num_tool_calls": len(calls) / len(episodes),
        "episode/frac_tool_errors": mean(
            [float(bool(call["error"])) for call in calls]
        ),
    }


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def std(values: Sequence[float]) -> float | None:
    """Sample standard deviation (ddof 1); exactly 0 for equal values."""
    if not values:
        return None
    return statistics.stdev(values) if len(values) > 1 else 0.0
