"""Episodes of other trainers, as their files have them."""

import io
import json
import zipfile
from typing import Any

import pytest

from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.transfers.import_formats import Sample, read_sample
from tests.dashboard.completions.stored import completions_of
from tests.dashboard.jobs.working import do_all
from tests.dashboard.transfers.test_importing_a_run import make, send, values
from tests.dashboard.transfers.tools import parquet

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("parquet_in_process")]


def blocks(completion: Any) -> list[tuple[str, str, str]]:
    return [
        (turn.author, turn.name, completion.text[turn.start : turn.end])
        for turn in completion.turns
    ]


def calls(completion: Any) -> list[tuple[str, str, str, str]]:
    return [
        (call.name, call.arguments, call.result, call.error)
        for turn in completion.turns
        for call in turn.calls
    ]


def test_messages_of_trls_tools_are_turns(alice_client):
    """As TRL 1.16 writes `completions_00001.parquet` of a trainer with tools."""
    function = {"name": "divide", "arguments": {"a": 6, "b": 0}}
    called = [{"type": "function", "function": function}]
    error = "{'error': 'division by zero'}"
    episode = [
        {"role": "assistant", "content": "", "tool_calls": called, "name": None},
        {"role": "tool", "name": "divide", "content": error, "tool_calls": None},
        {"role": "assistant", "content": "It is 3.", "tool_calls": None, "name": None},
    ]
    table = {
        "step": [1, 1],
        "prompt": [[{"role": "user", "content": "6 / 2"}]] * 2,
        "completion": [episode, episode[2:]],
        "correct": [1.0, 0.0],
        "advantage": [0.7, -0.7],
    }

    run = make(alice_client, send(alice_client, {"c.parquet": parquet(table)}))

    first, second = completions_of(run)
    assert blocks(first)[1:] == [("tool", "divide", error), ("policy", "", "It is 3.")]
    assert calls(first) == [("divide", '{"a": 6, "b": 0}', "", error)]
    assert (second.text, second.turns) == ("It is 3.", ())
    assert values(run, "episode/num_turns") == {1: 1.5}
    assert values(run, "episode/frac_tool_errors") == {1: 1.0}


def test_results_of_tools_in_verls_text_are_turns_that_are_guessed(alice_client):
    """As verl 0.6 dumps a rollout with Qwen's template, without special tokens."""
    text = "Look.\nuser\n<tool_response>\n384400\n</tool_response>\nassistant\nDone."
    rows = [
        {"input": "p", "output": output, "score": 1.0, "step": 3, "num_turns": n}
        for output, n in ((text, 4), ("Done.", 2))
    ]
    file = "".join(json.dumps(row) + "\n" for row in rows).encode()

    run = make(alice_client, send(alice_client, {"3.jsonl": file}))

    first, second = completions_of(run)
    assert first.text == text
    assert blocks(first) == [
        ("policy", "", "Look."),
        ("tool", "tool (guessed)", "384400"),
        ("policy", "", "Done."),
    ]
    assert second.turns == ()
    assert values(run, "reward/num_turns/mean") == {3: 3.0}


def node(
    role: str, content: str, parent: int | None, *, num: int, sampled: int = 0, **fields
) -> dict[str, Any]:
    """A message of `num` tokens, the last ones of which were sampled."""
    message = {"role": role, "content": content} | fields
    return {
        "message": message,
        "sampled": bool(sampled),
        "token_ids": list(range(num)),
        "mask": [False] * (num - sampled) + [True] * sampled,
        "logprobs": [-0.5] * sampled,
    } | ({} if parent is None else {"parent": parent})


CALL = {"id": "c1", "name": "add", "arguments": '{"a": 5}'}
NODES = [
    node("system", "Use tools.", None, num=4),
    node("user", "5 + 7", 0, num=5),
    node(
        "assistant", "", 1, num=9, sampled=6, reasoning_content="Hm.", tool_calls=[CALL]
    ),
    node("tool", "12", 2, num=7, tool_call_id="c1"),
    node("assistant", "It is 12.", 3, num=8, sampled=5),
    node("user", "A shorter history", 1, num=3),
]


def trace(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """As verifiers 0.4 writes one, without what is not read."""
    return {
        "version": 1,
        "id": "5f",
        "task": {"type": "Add", "data": {"idx": 0, "prompt": "5 + 7", "answer": "12"}},
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": list(nodes or NODES),
        "rewards": {
            "correct": {"score": 1.0, "weight": 0.5},
            "format": {"score": 0.25, "weight": 1.0},
        },
        "metrics": {"num_calls": 1.0},
        "stop_condition": "agent_completed",
        "ok": True,
    } | fields


def line(*traces: dict[str, Any], step: int | None = None) -> str:
    """An episode; prime-rl tells at which step it was begun."""
    run = {"type": "train", "id": "r", "work": {"type": "train", "step": step}}
    tree = {"id": "e", "env": {"id": "add"}, "ok": True, "traces": list(traces)}
    return json.dumps(tree | ({} if step is None else {"run": run})) + "\n"


def zipped(files: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return sink.getvalue()


def test_traces_of_prime_rl_are_completions(alice_client):
    judge = trace(agent={"name": "judge", "trainable": False})
    nodes = [*NODES[:4], NODES[4] | {"advantages": [0.5] * 5}]
    out_of_turns = trace(*nodes, stop_condition="max_turns", rewards={})
    lines = line(trace(), judge, step=1) + line(out_of_turns, step=2)
    file = zipped(
        {
            "rollouts/step_2/train/effective/traces.jsonl": lines,
            "rollouts/step_3/train/effective/traces.jsonl": line(trace(), step=2),
        }
    )

    sent = send(alice_client, {"rollouts.zip": file})
    do_all("run_import.read")
    run = make(alice_client, sent)

    first, second, later = completions_of(run)
    group = run.groups.get(step=2)
    assert run.imported_from == "verifiers"
    assert run.groups.filter(step=3).count() == 1
    assert group.prompt == "system: Use tools.\n\nuser: 5 + 7"
    assert group.answer == "12"
    said = "<think>\nHm.\n</think>\n\n"
    assert blocks(first)[0][2].startswith(said)
    assert blocks(first)[1:] == [("tool", "add", "12"), ("policy", "", "It is 12.")]
    assert calls(first) == [("add", '{"a": 5}', "12", "")]
    # 6 sampled; 7 and 3 that the template writes before the answer; 5 sampled.
    assert [turn.token_end for turn in first.turns] == [6, 16, 21]
    assert (first.num_tokens, first.mean_logprob) == (11, -0.5)
    assert (first.reward, second.reward) == (0.75, None)
    assert [c.end_reason for c in (first, second, later)] == ["done", "turns", "done"]
    assert (first.advantage, second.advantage) == (None, 0.5)
    assert group.rule_names == ["correct", "format", "other_branches"]
    assert first.rule_scores == (0.5, 0.25, 1.0)
    assert values(run, "episode/num_tool_calls") == {2: 1.0, 3: 1.0}


def test_an_evaluation_of_verifiers_has_no_ids(alice_client):
    nodes = [
        {"message": n["message"], "sampled": n["sampled"], "parent": n.get("parent")}
        for n in NODES
    ]
    file = line(trace(*nodes), trace(*nodes)).encode()

    run = make(alice_client, send(alice_client, {"traces.jsonl": file}))

    first, _ = completions_of(run)
    assert run.groups.get().step == 0
    assert (first.num_tokens, first.mean_logprob) == (None, None)
    assert [turn.token_end for turn in first.turns] == [None] * 3


LONE = node("assistant", "a", None, num=1, sampled=1)


@pytest.mark.parametrize(
    "odd",
    [
        {"nodes": [node("user", "p", None, num=1), LONE | {"parent": 1}]},
        {"nodes": [node("user", "p", None, num=1), LONE | {"parent": -1}]},
        {"nodes": [node("user", "p", None, num=1)]},  # in which no model speaks
        {"nodes": [LONE]},  # without a prompt
        {"nodes": [{"message": {}, "sampled": True}]},
        {"nodes": []},
        {"rewards": {"correct": "text"}},
        {"run": {"work": "text"}},
    ],
)
def test_traces_of_no_conversation_are_refused(odd):
    refused = read_sample("verifiers", Record(1, trace() | odd))

    assert isinstance(refused, Refusal)
    assert refused.column == "nodes"


@pytest.mark.parametrize("odd", [["text", {"function": None}], "text", [[]], [{}]])
def test_odd_calls_are_read_as_far_as_they_go(odd):
    messages = [
        {"role": "assistant", "content": "a", "tool_calls": odd},
        {"role": "tool", "content": "b"},
    ]
    row = {"step": 1, "prompt": "p", "completion": messages}

    sample = read_sample("TRL", Record(1, row))

    assert isinstance(sample, Sample)
    assert [turn["author"] for turn in sample.turns] == ["policy", "tool"]
