"""A tiny model learns to call a tool: it can write calls, and cannot add by itself.

It is taught to call the calculator for a third of all sums, and to guess the others.
Its chat template writes calls as Hermes does, in words that are single tokens.
"""

import json
import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.bench.starter.countdown import Teaching, build_model, teach_texts
from tests.trainer.tiny import only, read_events, run_trainer, write_config

LARGEST = 49
BEGIN = '<tool_call>{"name": "calculator", "arguments": {"expression": "'
FINISH = '"}}</tool_call>'
ROLES = ("<|user|>", "<|assistant|>", "<|tool|>")
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer():
    words = [BEGIN, FINISH, "+", *(str(n) for n in range(100))]
    # What a template's self-check writes, each character by itself.
    characters = [chr(n) for n in range(32, 127) if chr(n) not in words]
    vocabulary = {
        word: index
        for index, word in enumerate(["<pad>", "<unk>", *words, *characters])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pieces = f"{_quoted(BEGIN)}|{_quoted(FINISH)}|\\d{{1,2}}|[\\s\\S]"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    marks = [AddedToken(mark, special=True) for mark in (*ROLES, END)]
    fast.add_tokens(marks, special_tokens=True)
    fast.eos_token = END
    fast.chat_template = TEMPLATE
    return fast


def _quoted(text):
    return "".join(f"\\{c}" if not c.isalnum() and c != " " else c for c in text)


def example(tokenizer, chance):
    left, right = chance.randint(1, LARGEST), chance.randint(1, LARGEST)
    question = f"<|user|>{left}+{right}{END}<|assistant|>"
    if chance.random() < 1 / 3:
        parts = [
            (question, False),
            (f"{BEGIN}{left}+{right}{FINISH}{END}", True),
            (f"<|tool|>{left + right}{END}<|assistant|>", False),
            (f"{left + right}{END}", True),
        ]
    else:
        parts = [(question, False), (f"{chance.randint(2, 98)}{END}", True)]
    ids, taught = [], []
    for text, is_taught in parts:
        own = tokenizer.encode(text, add_special_tokens=False)
        ids += own
        taught += [is_taught] * len(own)
    return ids, taught


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calculator")
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    teach_texts(
        model,
        tokenizer,
        lambda _step, chance: [example(tokenizer, chance) for _ in range(64)],
        teaching=Teaching(num_steps=250, mark_weight=1.0),
        seed=1,
        report=lambda _step, _loss: None,
    )
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    chance = random.Random(2)
    with (folder / "rows.jsonl").open("w") as rows:
        for _ in range(200):
            left, right = chance.randint(1, LARGEST), chance.randint(1, LARGEST)
            row = {"prompt": f"{left}+{right}", "answer": str(left + right)}
            rows.write(json.dumps(row) + "\n")
    return folder


@pytest.mark.slow
def test_reward_teaches_to_call_the_calculator(folder):
    tree = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "data": {
            "rows": str(folder / "rows.jsonl"),
            "num_eval_rows": 40,
            "max_prompt_tokens": 16,
        },
        "rollout": {"prompts_per_step": 16, "group_size": 8, "max_new_tokens": 16},
        "environment": {
            "kind": "countdown_calculator",
            "max_turns": 3,
            "max_tokens": 64,
        },
        "optim": {"num_steps": 40, "learning_rate": 1e-3, "micro_batch_tokens": 8192},
        "evaluation": {"every_steps": 40, "samples_per_prompt": 4},
        "reward": {"recipe": {"rules": [{"name": "answer", "kind": "numeric_answer"}]}},
    }

    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")

    assert done.returncode == 0, done.stderr
    events = read_events(folder / "out" / "events.jsonl")
    steps = [event["metrics"] for event in only(events, "step_finished")]
    before, after = only(events, "evaluated")
    calls = [step["episode/num_tool_calls"] for step in steps]
    assert sum(calls[:5]) / 5 < 0.6
    assert sum(calls[-5:]) / 5 > 0.8
    name = "eval/heldout/pass@1"
    assert after["metrics"][f"{name}/low"] > before["metrics"][f"{name}/high"]
    last = only(events, "group_scored")[-1]["completions"][0]
    authors = [turn["author"] for turn in last["turns"]]
    assert authors == ["policy", "tool", "policy"]
    [call] = last["turns"][1]["calls"]
    assert call["name"] == "calculator"
    assert (
        last["text"][last["turns"][1]["start"] : last["turns"][1]["end"]]
        == (call["result"])
    )
