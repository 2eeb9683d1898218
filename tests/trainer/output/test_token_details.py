"""Groups told of token by token: which they are, and what the log says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import trainer.grpo
from tests.trainer.model.test_out_of_memory import little_memory as little_memory
from tests.trainer.scored import make_group, run_config
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.events import MeasuredCompletion
from trainer.model.token_values import NAMES, TokenValues
from trainer.output.journal import (
    MAX_TOKENS,
    choose_groups,
    describe_tokens,
    fair_limit,
    places_of,
)
from trainer.types import Group, Rollout

MIXED, DEAD = make_group(1.0, 0.0), make_group(1.0, 1.0)


def chosen(*groups: Group, step: int = 1, **logging: int) -> list[int]:
    return choose_groups(groups, run_config(logging=logging), step=step)


def test_groups_that_teach_are_chosen_first():
    assert chosen(DEAD, MIXED, DEAD, MIXED) == [1, 3]
    assert chosen(DEAD, DEAD, MIXED, DEAD) == [0, 2]
    assert chosen(DEAD, DEAD) == [0, 1]


def test_groups_are_spread_over_the_batch():
    assert chosen(*[MIXED] * 8, token_groups=4) == [0, 2, 4, 6]
    assert chosen(DEAD, *[MIXED] * 6) == [1, 4]


def test_fewer_groups_than_requested_are_all_chosen():
    assert chosen(MIXED, token_groups=5) == [0]
    assert chosen(token_groups=5) == []


@pytest.mark.parametrize(
    ("logging", "steps"),
    [
        ({}, [1, 10, 20]),
        ({"tokens_every_steps": 7}, [1, 7, 14, 21]),
        ({"tokens_every_steps": 4, "groups_every_steps": 8}, [8, 16]),
        ({"token_groups": 0}, []),
    ],
)
def test_steps_whose_tokens_are_kept(logging, steps):
    kept = [step for step in range(1, 23) if chosen(MIXED, step=step, **logging)]

    assert kept == steps


def test_places_count_the_completions_before():
    groups = [make_group(1.0, 0.0), make_group(1.0, 0.0, 1.0), make_group(1.0)]

    assert places_of(groups, [0, 2]) == [range(2), range(5, 6)]


@pytest.mark.parametrize(
    ("lengths", "room", "limit"),
    [([2, 9, 9], 12, 5), ([3, 3], 12, 3), ([10, 10], 9, 4), ([], 5, 0), ([0], 5, 0)],
)
def test_room_is_shared_so_that_short_completions_leave_theirs_to_long_ones(
    lengths, room, limit
):
    assert fair_limit(lengths, room=room) == limit
    assert sum(min(length, limit) for length in lengths) <= room


def measured(num_tokens: int, **values: torch.Tensor | None) -> TokenValues:
    some = torch.linspace(0.123456789, 1, num_tokens)
    return TokenValues(**dict.fromkeys(NAMES, some) | values)  # type: ignore[arg-type]  # by name


def completion(*token_ids: int) -> Rollout:
    return Rollout.of_one_turn(
        text="?",
        token_ids=token_ids,
        logprobs=(-0.5,) * len(token_ids),
        end_reason="stop",
    )


def group_of(*completions: Rollout) -> Group:
    scored = make_group(*[1.0] * len(completions))
    return Group(prompt=scored.prompt, completions=completions, scores=scored.scores)


def describe(
    tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], **values: Any
) -> MeasuredCompletion:
    own = measured(len(ids), **values)
    (reported,) = describe_tokens(group_of(completion(*ids)), [own], tokenizer)
    return reported


def test_pieces_are_each_tokens_own_text_with_special_tokens_spelled(policy):
    vocabulary = policy.tokenizer.get_vocab()
    ids = tuple(vocabulary[token] for token in ("a", "7", "\n", "<eos>"))

    reported = describe(policy.tokenizer, ids)

    assert reported.ids == list(ids)
    assert reported.pieces == ["a", "7", "\n", "<eos>"]
    assert reported.special == [3]


def test_values_have_five_digits_and_nan_is_null(policy):
    reported = describe(
        policy.tokenizer,
        (3, 4, 5),
        logprob=torch.tensor([-1.23456789, -torch.inf, -1.5e-9]),
        kl=None,
        ratio=torch.full((3,), torch.nan),
        clipped=torch.tensor([-1.0, 2.0, torch.nan]),
    )

    assert reported.logprob == [-1.2346, None, -1.5e-9]
    assert reported.kl is None
    assert reported.ratio is None
    assert reported.clipped == [-1, 2, None]


def test_a_completion_without_tokens_has_empty_lists(policy):
    reported = describe(policy.tokenizer, ())

    assert (reported.ids, reported.pieces, reported.logprob) == ([], [], [])


def test_beginnings_of_a_very_long_group_are_logged(policy):
    lengths = (10, MAX_TOKENS, 2 * MAX_TOKENS)
    group = group_of(*[completion(*[3] * length) for length in lengths])

    reported = describe_tokens(
        group, [measured(length) for length in lengths], policy.tokenizer
    )

    assert [each.num_tokens for each in reported] == list(lengths)
    assert [len(each.ids) for each in reported] == [10, 32_763, 32_763]
    assert all(len(each.kl or []) == len(each.ids) for each in reported)


def sentence_pieces(*tokens: str) -> PreTrainedTokenizerBase:
    """As Llama 2's, whose decoder takes the first space off."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_pieces_keep_the_space_that_sentencepiece_takes_off():
    tokenizer = sentence_pieces("▁the", "re", "▁", "▁▁", "<0xE2>")

    reported = describe(tokenizer, (0, 1, 2, 3, 4))

    assert reported.pieces == [" the", "re", " ", "  ", "\ufffd"]


def train(folder: Path, tree: dict[str, Any]) -> list[dict[str, Any]]:
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return read_events(folder / "out" / "events.jsonl")


VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {
        "loss": {"kl_coef": 0.1},
        "optim": {"updates_per_batch": 2, "minibatches": 2},
    },
    "one-step-off": {
        "rollout": {"one_step_off": True},
        "loss": {"importance_correction": "token_truncate", "entropy_coef": 0.01},
    },
    "full-kl": {"loss": {"kl_coef": 0.05, "kl_estimator": "full"}},
    "preferences": {
        "advantage": {"credit": "preference"},
        "loss": {"surrogate": "reinforce"},
        "optim": {"updates_per_batch": 2, "minibatches": 2},
    },
    "drop": {"rollout": {"dynamic_sampling": "drop"}},
}


SOME = {"grpo", "preferences"}  # by a loss's terms, by pairs


def plain(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without token values, and without the times of anything."""
    kept = []
    for event in events:
        if event["type"] in ("group_scored", "step_finished", "evaluated"):
            story = {k: v for k, v in event.items() if k not in ("line", "time")}
            metrics = story.get("metrics", {})
            clocks = ("time/", "tokens_per_second", "sampling/seconds")
            story["metrics"] = {
                k: v for k, v in metrics.items() if not k.startswith(clocks)
            }
            kept.append(story)
    return kept


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[] if name in SOME else pytest.mark.slow)
        for name in VARIANTS
    ],
)
def test_a_run_is_bit_for_bit_the_same_with_token_values_and_without(
    variant, model_folder, rows_path, tmp_path
):
    parts = VARIANTS[variant] | {"logging": {"tokens_every_steps": 1}}
    tree = config_tree(model_folder, rows_path, **parts)
    tree["optim"]["num_steps"] = 3
    with_values = train(tmp_path / "with", tree)
    tree["logging"] = {"token_groups": 0}

    without = train(tmp_path / "without", tree)

    assert plain(with_values) == plain(without)
    assert len(only(with_values, "tokens_measured")) > 3
    assert only(without, "tokens_measured") == []
    name = Path(
        "out", "checkpoints", "step-000003-attempt-1", "model/model.safetensors"
    )
    ours, theirs = (tmp_path / each / name for each in ("with", "without"))
    assert ours.read_bytes() == theirs.read_bytes()


def assert_agree(reported: dict[str, Any], group: dict[str, Any]) -> None:
    """A group's tokens and its completions tell of the same."""
    for tokens, scored in zip(
        reported["completions"], group["completions"], strict=True
    ):
        assert tokens["num_tokens"] == scored["num_tokens"] == len(tokens["ids"])
        text = "".join(tokens["pieces"]).removesuffix("<eos>")
        assert text == scored["text"].removesuffix("<eos>")
        mean = sum(tokens["sampling_logprob"]) / len(tokens["ids"])
        assert mean == pytest.approx(scored["mean_logprob"], rel=1e-4)
        assert tokens["advantage"] == pytest.approx(
            [scored["advantage"]] * len(tokens["ids"]), rel=1e-4
        )


def test_the_log_reports_tokens_behind_the_groups_of_their_step(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(model_folder, rows_path, logging={"tokens_every_steps": 3})

    events = train(tmp_path, tree)

    order = [(e["type"], e["step"]) for e in events if e["type"] != "warned"]
    for step in (1, 3, 6):
        begin = order.index(("tokens_measured", step))
        assert order[begin - 4 : begin] == [("group_scored", step)] * 4
        assert order[begin : begin + 2] == [("tokens_measured", step)] * 2
        assert order[begin + 2 : begin + 4] == [
            ("mismatch_measured", step),
            ("step_finished", step),
        ]
    assert {e["step"] for e in only(events, "tokens_measured")} == {1, 3, 6}
    for reported in only(events, "tokens_measured"):
        (group,) = [
            each
            for each in only(events, "group_scored")
            if (each["step"], each["prompt_index"])
            == (reported["step"], reported["prompt_index"])
        ]
        assert_agree(reported, group)


def test_a_preference_gives_values_that_it_has(model_folder, rows_path, tmp_path):
    tree = config_tree(model_folder, rows_path, **VARIANTS["preferences"])

    reported = only(train(tmp_path, tree), "tokens_measured")[0]["completions"][0]

    assert reported["ratio"] is None
    assert reported["clipped"] is None
    assert all(value is not None for value in reported["kl"])
    assert reported["coefficient"] == reported["advantage"]


def test_they_are_of_the_first_update_over_a_completion(
    model_folder, rows_path, tmp_path, monkeypatch
):
    add_gradients, asked = trainer.grpo.add_gradients, []

    def watch(*given: Any, **named: Any) -> Any:
        asked.append(len(named["kept"]))
        return add_gradients(*given, **named)

    monkeypatch.setattr("trainer.grpo.add_gradients", watch)

    def tokens(passes: int) -> list[Any]:
        optim = {"num_steps": 1, "updates_per_batch": passes, "minibatches": 2}
        tree = config_tree(model_folder, rows_path, optim=optim)
        events = train(tmp_path / str(passes), tree)
        return [each["completions"] for each in only(events, "tokens_measured")]

    once, thrice = tokens(1), tokens(3)

    assert once == thrice
    assert asked == [4, 4, 4, 4, 0, 0, 0, 0]  # a group of each minibatch


def test_values_survive_a_step_that_is_done_again_for_want_of_memory(
    model_folder, rows_path, tmp_path, little_memory
):
    def tokens(name: str, at_once: int) -> list[Any]:
        tree = config_tree(
            model_folder,
            rows_path,
            optim={"num_steps": 1, "micro_batch_tokens": at_once},
        )
        events = train(tmp_path / name, tree)
        halved = [e["code"] for e in only(events, "warned")].count("out_of_memory")
        assert halved == (2 if at_once == 256 else 0)
        return [each["completions"] for each in only(events, "tokens_measured")]

    assert tokens("large", 256) == tokens("small", 64)


def test_a_group_that_was_dropped_has_no_token_values(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(
        model_folder,
        rows_path,
        rollout={"dynamic_sampling": "drop"},
        logging={"token_groups": 64, "tokens_every_steps": 1},
        reward={
            "recipe": {
                "rules": [{"name": "s", "kind": "length", "params": {"maximum": 11}}]
            }
        },
    )

    events = train(tmp_path, tree)

    def places(groups: list[dict[str, Any]]) -> list[tuple[int, int]]:
        return sorted((each["step"], each["prompt_index"]) for each in groups)

    groups = only(events, "group_scored")
    trained = [each for each in groups if each["is_trained"]]
    assert 0 < len(trained) < len(groups)
    assert places(only(events, "tokens_measured")) == places(trained)


def test_a_change_of_the_run_is_received(model_folder, rows_path, tmp_path):
    settings = {"logging.token_groups": 1, "logging.tokens_every_steps": 2}
    change = {"number": 1, "after_step": 2, "settings": settings}
    (tmp_path / "out").mkdir()
    changes = tmp_path / "out" / "changes.json"
    changes.write_text(json.dumps({"changes": [change]}))

    events = train(tmp_path, config_tree(model_folder, rows_path))

    assert [e["step"] for e in only(events, "tokens_measured")] == [1, 1, 4, 6]
