"""A classifier's scores are transformers', alone and in any batch."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

from tests.trainer.rewards.scores import recipe_of, scored
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
)
from trainer.model.classifier import Classifier, Settings, _Text
from trainer.rewards.rule import Sample
from trainer.rewards.rules.reward_model import (
    Classifiers,
    NoScores,
    RewardModelParams,
    check_model,
    score_by_model,
)
from trainer.rewards.session import Session, open_session
from trainer.rewards.spec import recipe_bounds

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}"
    "{% if not (continue_final_message and loop.last) %}!{% endif %}{% endfor %}"
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,  # so that scores are far from one another
}
REPLIES = ["", "a", "abc", "12+3=15", "h" * 40, "abcdefgh" * 30, "a b c d", "?!"]


def write_classifier(
    folder: Path, kind: Any = Qwen2ForSequenceClassification, *, num_labels: int = 1,
    pad: int | None = 0, template: str | None = None, **changes: Any,
) -> Path:  # fmt: skip
    write_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer), num_labels=num_labels, pad_token_id=pad,
        eos_token_id=1, bos_token_id=None, **(SIZES | changes),
    )  # fmt: skip
    torch.manual_seed(7)
    kind(config).save_pretrained(folder)
    if template is not None:
        tokenizer.chat_template = template
    if pad is None:
        tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("one") / "model")


def settings(folder: Path, **changes: Any) -> Settings:
    defaults: dict[str, Any] = {
        "path": str(folder),
        "revision": None,
        "head": "sequence",
        "label": "",
        "score_as": "raw",
        "device": "cpu",
        "max_tokens": 4_096,
        "batch_tokens": 16_384,
    }
    return Settings(**(defaults | changes))


def test_a_rule_without_its_gpu_is_refused_by_the_rules_setting(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(ValueError, match="the rule's device"):
        Classifier(settings(folder, device="cuda"))


def talk(reply: str, prompt: str = "1+2=") -> list[dict[str, str]]:
    return [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": reply},
    ]


def slow_score(folder: Path, ids: list[int]) -> float:
    """Through transformers alone, one text at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return float(model(torch.tensor([ids[:128]])).logits[0, 0])


def test_scores_are_those_of_transformers(folder):
    found = Classifier(settings(folder)).scores([talk(reply) for reply in REPLIES])

    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [
        slow_score(folder, tokenizer("1+2=" + reply)["input_ids"]) for reply in REPLIES
    ]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in found}) > 5


@pytest.mark.parametrize("pad", [0, None])
@pytest.mark.parametrize("batch_tokens", [1, 60, 100_000])
def test_a_score_does_not_depend_on_its_batch(pad, batch_tokens, tmp_path):
    folder = write_classifier(tmp_path / "model", pad=pad)
    talks = [talk(reply) for reply in [*REPLIES, *REPLIES[::-1]]]
    alone = Classifier(settings(folder))

    together = Classifier(settings(folder, batch_tokens=batch_tokens)).scores(talks)

    assert together == pytest.approx([alone.scores([t])[0] for t in talks], abs=1e-5)


def test_without_padding_every_token_counts(tmp_path):
    folder = write_classifier(tmp_path / "model", pad=None)
    ids = [5, 6, 0]  # others pad with 0

    with torch.inference_mode():
        (found,) = Classifier(settings(folder))._logits([_Text(ids, [])])

    assert found == pytest.approx(slow_score(folder, ids), abs=1e-5)


def test_batches_keep_to_their_tokens(folder, monkeypatch):
    shapes: list[tuple[int, ...]] = []
    model = Classifier(settings(folder, batch_tokens=100))
    forward = model._model.forward

    def noted(input_ids: torch.Tensor, **others: Any) -> Any:
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **others)

    monkeypatch.setattr(model._model, "forward", noted)
    model.scores([talk(reply) for reply in REPLIES])

    assert sum(rows for rows, _ in shapes) == len(REPLIES)
    assert all(rows == 1 or rows * width <= 100 for rows, width in shapes)
    assert any(rows > 1 for rows, _ in shapes)


def test_a_batch_that_does_not_fit_is_halved(folder, monkeypatch):
    model = Classifier(settings(folder))
    logits, tried = model._logits, []

    def fits(texts: Any) -> Any:
        tried.append(len(texts))
        if len(texts) > 2:
            raise torch.OutOfMemoryError("none left")
        return logits(texts)

    talks = [talk(reply) for reply in REPLIES]
    expected = model.scores(talks)
    monkeypatch.setattr(model, "_logits", fits)

    assert model.scores(talks) == pytest.approx(expected, abs=1e-5)
    assert max(tried) == len(REPLIES)
    tried.clear()
    model.scores(talks)
    assert max(tried) < len(REPLIES)


def test_the_models_own_chat_template_is_applied(tmp_path):
    folder = write_classifier(tmp_path / "model", template=TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    (found,) = Classifier(settings(folder)).scores([talk("abc")])

    text = "<u>1+2=!<a>abc!"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert found == pytest.approx(slow_score(folder, ids), abs=1e-5)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (None, None),
        (TEMPLATE, "<a>add({})!<a>abc!"),
        (TEMPLATE + "{# tool_calls #}", "<a>!<a>abc!"),
    ],
)
def test_a_message_that_calls_tools_is_text_for_a_template_that_knows_none(
    template, text, tmp_path
):
    folder = write_classifier(tmp_path / "model", template=template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}

    (found,) = Classifier(settings(folder)).scores([[call, *talk("abc")[1:]]])

    given = ("add({})", "abc") if text is None else (text,)
    ids = tokenizer(*given, add_special_tokens=False)["input_ids"]
    assert found == pytest.approx(slow_score(folder, ids), abs=1e-5)


def test_a_classifier_of_tokens_reads_the_end_of_the_reply(tmp_path):
    folder = write_classifier(
        tmp_path / "model", Qwen2ForTokenClassification, num_labels=2, template=TEMPLATE
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen2ForTokenClassification.from_pretrained(folder).eval()

    found = Classifier(
        settings(folder, head="token", label="LABEL_1", score_as="probability")
    ).scores([talk("abc"), talk("abcdefg")])

    for reply, score in zip(["abc", "abcdefg"], found, strict=True):
        ids = tokenizer(f"<u>1+2=!<a>{reply}", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        assert score == pytest.approx(float(logits.softmax(-1)[1]), abs=1e-5)


@pytest.mark.parametrize("label", ["LABEL_2", "2"])
def test_a_chosen_labels_value_is_the_score(label, tmp_path):
    folder = write_classifier(tmp_path / "model", num_labels=3)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)("1+2=abc", return_tensors="pt")
    with torch.no_grad():
        logits = model(ids["input_ids"]).logits[0]

    def read(score_as: str) -> float:
        chosen = settings(folder, label=label, score_as=score_as)
        return Classifier(chosen).scores([talk("abc")])[0]

    assert read("raw") == pytest.approx(float(logits[2]), abs=1e-5)
    assert read("sigmoid") == pytest.approx(float(logits[2].sigmoid()), abs=1e-5)
    assert read("probability") == pytest.approx(float(logits.softmax(0)[2]), abs=1e-5)


@pytest.mark.parametrize(
    ("label", "words"),
    [("", "several labels"), ("3", "no label '3'"), ("good", "LABEL_0, LABEL_1")],
)
def test_a_label_that_is_not_there_is_refused(label, words, tmp_path):
    folder = write_classifier(tmp_path / "model", num_labels=3)

    with pytest.raises(ValueError, match=words):
        Classifier(settings(folder, label=label))


def test_a_language_model_is_refused_as_reward_model(tmp_path):
    folder = write_model(tmp_path / "model")

    with pytest.raises(ValueError, match=r"score\.weight"):
        Classifier(settings(folder))


def test_weights_are_read_from_safetensors_alone(folder, tmp_path):
    pickled = shutil.copytree(folder, tmp_path / "model")
    (pickled / "model.safetensors").unlink()
    torch.save({}, pickled / "pytorch_model.bin")

    with pytest.raises(ValueError, match="cannot be loaded"):
        Classifier(settings(pickled))


def test_a_models_own_code_is_not_run(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda question: "y")
    planted = shutil.copytree(folder, tmp_path / "model")
    trace = tmp_path / "was-run"
    (planted / "code.py").write_text(f"open({str(trace)!r}, 'w')\n")
    config = json.loads((planted / "config.json").read_text())
    config |= {
        "model_type": "unheard-of",
        "auto_map": {
            "AutoConfig": "code.Config",
            "AutoModelForSequenceClassification": "code.Model",
        },
    }
    (planted / "config.json").write_text(json.dumps(config))

    with pytest.raises(ValueError, match="cannot be loaded"):
        Classifier(settings(planted))

    assert not trace.exists()


def test_a_text_that_is_too_long_is_cut(folder):
    model = Classifier(settings(folder, max_tokens=10))

    first, second, short = model.scores([talk("abcdefgh"), talk("abcdef"), talk("abc")])

    assert first == second != short


@pytest.fixture(scope="module")
def in_run(tmp_path_factory) -> Iterator[None]:
    with open_session(tmp_path_factory.mktemp("run")):
        yield


def params(folder: Path, **changes: Any) -> RewardModelParams:
    return RewardModelParams.model_validate(
        {"path": str(folder), "device": "cpu"} | changes
    )


@pytest.mark.slow
def test_the_rule_asks_a_process_of_its_own(folder, in_run):
    samples = [Sample("1+2=", reply) for reply in REPLIES]
    here = Classifier(settings(folder)).scores([talk(reply) for reply in REPLIES])

    raw = score_by_model(samples, params(folder, score_as="raw"))
    bounded = score_by_model(samples, params(folder))
    cut = score_by_model(samples, params(folder, score_as="raw", low=-0.1, high=0.1))

    assert raw == pytest.approx(here, abs=1e-5)
    sigmoids = torch.tensor(here).sigmoid().tolist()
    assert bounded == pytest.approx(sigmoids, abs=1e-5)
    assert cut == pytest.approx([min(max(s, -0.1), 0.1) for s in here], abs=1e-5)


@pytest.mark.slow
def test_a_step_is_scored_behind_those_before_it(folder, in_run):
    whole = Sample("1+2=", "12+3=15")
    step = Sample("1+2=", "=15", before="12+3")
    other = Sample("1+2=", "=15")

    found = score_by_model([whole, step, other], params(folder))

    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_the_conversation_is_what_the_model_reads(folder, in_run):
    messages = [{"role": "user", "content": "1+2="}]

    bare, marked, other = score_by_model(
        [
            Sample("1+2=", "3"),
            Sample("<user>1+2=<end>", "3", messages=messages),
            Sample("<user>1+2=<end>", "3"),
        ],
        params(folder),
    )

    assert bare == marked != other


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        Classifier(settings(tmp_path))


@pytest.mark.slow
def test_an_unloadable_reward_model_is_reported_before_a_run(tmp_path, in_run):
    with pytest.raises(ValueError, match=r"config\.json"):
        check_model(params(tmp_path))


def test_a_process_that_is_lost_is_replaced_once(tmp_path):
    classifiers = Classifiers("tests.trainer.rewards.bad_classifying")
    asked = {"path": "models/x"}
    try:
        once = classifiers.scores(asked, [talk(f"die {tmp_path / 'begun'}")])

        with pytest.raises(NoScores, match=r"models/x .*SIGKILL"):
            classifiers.scores(asked, [talk("die")])
        after = classifiers.scores(asked, [talk("abc")])
    finally:
        classifiers.close()

    assert once == after == [0.5]


def test_outside_of_a_run_no_model_is_loaded(folder, monkeypatch):
    monkeypatch.setattr("trainer.rewards.session._current", Session())

    found = scored("reward_model", "abc", path=str(folder))

    assert found.total is None
    assert "only in a run" in found.errors["it"]


def test_bounds_are_those_of_the_numbers():
    assert recipe_bounds(recipe_of("reward_model", path="x")) == (0, 1)
    raw = recipe_of("reward_model", path="x", score_as="raw", low=-3, high=5)
    assert recipe_bounds(raw) == (-3, 5)
    with pytest.raises(ValueError, match="high"):
        recipe_of("reward_model", path="x", low=3, high=3)


@pytest.mark.slow
def test_a_run_is_rewarded_by_models_for_replies_and_for_steps(
    model_folder, rows_path, tmp_path
):
    whole = write_classifier(tmp_path / "whole")
    steps = write_classifier(
        tmp_path / "steps", Qwen2ForTokenClassification, num_labels=2
    )
    of_steps = {
        "path": str(steps),
        "device": "cpu",
        "head": "token",
        "label": "1",
        "score_as": "probability",
    }
    rules = [
        {
            "name": "model",
            "kind": "reward_model",
            "params": {"path": str(whole), "device": "cpu"},
        }
    ]
    tree = config_tree(
        model_folder,
        rows_path,
        reward={
            "recipe": {"rules": rules},
            "step_recipe": {
                "rules": [{"name": "s", "kind": "reward_model", "params": of_steps}]
            },
            "step_pattern": "[0-9]",
        },
        advantage={"credit": "process"},
        optim={"num_steps": 2},
    )

    done = run_trainer(
        "run", write_config(tmp_path / "config", tree), "--out", tmp_path / "run"
    )

    assert done.returncode == 0, done.stderr
    events = read_events(tmp_path / "run" / "events.jsonl")
    scores = [
        each["rules"]["model"]
        for group in only(events, "group_scored")
        for each in group["completions"]
    ]
    assert len(set(scores)) > 5
    assert all(0 < score < 1 for score in scores)
    steps_done = only(events, "step_finished")
    assert all(event["metrics"]["grad_norm"] > 0 for event in steps_done)
