"""Record what prime-rl's FileMonitor (commit 559b4477) writes of two steps.

    pip install verifiers==0.4.0 && python record_prime_rl.py prime-rl

verifiers writes the episodes itself; the folders, settings and metrics are literals,
because prime-rl needs a GPU.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import orjson
from verifiers.v1.episode import WireEpisode

FOLDER = Path(sys.argv[1])
rng = random.Random(7)


def node(message: Any, parent: Any, num: int, sampled: int = 0) -> dict[str, Any]:
    return {
        "parent": parent,
        "message": message,
        "sampled": bool(sampled),
        "token_ids": [rng.randrange(1000) for _ in range(num)],
        "mask": [False] * (num - sampled) + [True] * sampled,
        "logprobs": [-0.25] * sampled,
        "advantages": [0.5] * sampled if sampled else None,
        "timestamp": 1.0,
    }


def task(a: int) -> dict[str, Any]:
    data = {"idx": a, "prompt": f"{a} + 1", "answer": str(a + 1)}
    return {"type": "Add", "data": data}


def trace(a: int, *, is_right: bool, name: str = "agent") -> dict[str, Any]:
    call = {"id": "c1", "name": "add", "arguments": json.dumps({"a": a, "b": 1})}
    said = {"content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    reply = f"It is {a + is_right}."
    nodes = [
        node({"role": "system", "content": "Use tools."}, None, 4),
        node({"role": "user", "content": f"{a} + 1"}, 0, 5),
        node({"role": "assistant"} | said, 1, 9, 6),
        node({"role": "tool", "content": str(a + 1), "tool_call_id": "c1"}, 2, 5),
        node({"role": "assistant", "content": reply}, 3, 8, 5),
        node({"role": "user", "content": "A shorter history"}, 1, 3),
    ]
    return {
        "id": name,
        "verifiers": {"version": "0.4.0"},
        "task": task(a),
        "agent": {"config": {}, "name": name, "trainable": name == "agent"},
        "nodes": nodes if a == 5 else nodes[:5],
        "rewards": {
            "correct": {"score": float(is_right), "weight": 1.0},
            "calls": {"score": 1.0, "weight": 0.25},
        },
        "ok": True,
        "stop_condition": "agent_completed" if is_right else "max_output_tokens",
        "timing": {"start": 1.0},
    }


def episode(step: int, a: int, *traces: dict[str, Any]) -> WireEpisode:
    fields = {
        "id": f"{step}-{a}",
        "env": {"id": "add"},
        "task": task(a),
        "group": {"id": f"{step}-{a}"},
        "ok": bool(traces),
        "traces": list(traces),
        "run": {"type": "train", "id": "r", "work": {"type": "train", "step": step}},
    }
    return WireEpisode.model_validate(fields)


def write(step: int, episodes: list[WireEpisode]) -> None:
    path = FOLDER / f"rollouts/step_{step}/train/effective/traces.jsonl"
    path.parent.mkdir(parents=True)
    option = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    with path.open("ab") as file:
        for one in episodes:
            file.write(orjson.dumps(one.to_record(), default=str, option=option))


def main() -> None:
    (FOLDER / "configs").mkdir(parents=True)
    settings = {"max_steps": 2, "model": {"name": "Qwen/Qwen3-0.6B"}}
    settings |= {"trainer": {"optim": {"lr": 1e-6}}, "hub_token": "secret"}
    (FOLDER / "configs/rl.json").write_text(json.dumps(settings, indent=2))
    write(
        1,
        [
            episode(1, 3, trace(3, is_right=True)),
            episode(1, 5, trace(5, is_right=True), trace(5, is_right=True, name="j")),
            episode(1, 3, trace(3, is_right=False)),
        ],
    )
    write(2, [episode(2, 3, trace(3, is_right=True)), episode(2, 3)])
    with (FOLDER / "metrics.jsonl").open("w") as file:
        for step in (1, 2):
            for metrics in (
                {"train/agg/effective/reward": 0.5, "time/step": 2.0},
                {"optim/lr": 1e-6, "optim/grad_norm": step / 2},
            ):
                file.write(json.dumps({"step": step, "time": 1.0} | metrics) + "\n")


main()
