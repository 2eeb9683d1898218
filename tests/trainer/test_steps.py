"""Cutting completions into reasoning steps, in characters and in tokens."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.trainer.scored import make_prompt
from trainer.config import RewardConfig
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import Score
from trainer.rewards.workers import Scored
from trainer.scoring import HERE, Boundary, Scorer, Step, cut_steps
from trainer.types import Rollout

EOS = 1


def byte_tokenizer(*merges: str) -> PreTrainedTokenizerFast:
    """A token for each byte, and one for each merge of two tokens given by bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [_as_letters(left) for left in merges]
    tokens = ["<pad>", "<eos>", *letters, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=pairs)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def _as_letters(merge: str) -> tuple[str, str]:
    left, right = merge.split("|")
    shown = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    first, second = (
        "".join(piece for piece, _ in shown.pre_tokenize_str(part))
        for part in (left, right)
    )
    return first, second


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Characters, and bytes for those it has not: SentencePiece's way."""
    tokens = ["<pad>", "<eos>", *"abc\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: n for n, token in enumerate(tokens)},
            merges=[],
            byte_fallback=True,
        )
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


BYTES = byte_tokenizer()
FALLBACK = fallback_tokenizer()


def written(
    text: str, tokenizer: PreTrainedTokenizerFast = BYTES, *, is_cut: bool = False
) -> Rollout:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    ids = token_ids if is_cut else [*token_ids, EOS]
    return Rollout.of_one_turn(
        text=tokenizer.decode(token_ids),
        token_ids=tuple(ids),
        logprobs=(0.0,) * len(ids),
        end_reason="length" if is_cut else "stop",
    )


def cut(
    text: str,
    pattern: str = r"\n+",
    tokenizer: PreTrainedTokenizerFast = BYTES,
    *,
    boundary: Boundary = "end",
    **options: Any,
) -> list[tuple[str, int]]:
    completion = written(text, tokenizer, **options)
    steps = cut_steps(
        completion, pattern=pattern, tokenizer=tokenizer, boundary=boundary
    )
    return [(step.text, step.end) for step in steps]


def test_a_step_ends_with_the_match_and_the_last_one_with_the_end_token():
    assert cut("ab\n\nc\nde") == [("ab\n\n", 4), ("c\n", 6), ("de", 9)]


def test_a_cut_completion_has_no_end_token_to_credit():
    assert cut("ab\ncd", is_cut=True) == [("ab\n", 3), ("cd", 5)]


@pytest.mark.parametrize("text", ["", "abc", "\n", " \n \n"])
def test_there_is_always_one_step(text):
    assert cut(text) == [(text, len(text) + 1)]


def test_blank_parts_are_no_steps():
    assert cut("\n\nab\n \ncd\n") == [("\n\nab\n", 5), (" \ncd\n", 11)]


def test_a_pattern_that_matches_nothing_or_nothingness_cuts_nothing():
    assert cut("a\nb", "x") == cut("a\nb", "x*") == [("a\nb", 4)]


def test_a_heading_begins_a_step():
    text = "So.\nStep 1: ab\nStep 2: c"

    found = cut(text, r"Step \d+:", boundary="begin")

    assert found == [("So.\n", 4), ("Step 1: ab\n", 15), ("Step 2: c", 25)]
    assert cut("Step 1: a", r"Step \d+:", boundary="begin") == [("Step 1: a", 10)]
    assert cut(" \nStep 1: a", r"Step \d+:", boundary="begin") == [(" \nStep 1: a", 12)]


def test_marks_belong_to_the_step_they_end():
    found = cut("3+5=8,8+7=15!3+5=8,8-7=1.", "[.!]")

    assert found == [("3+5=8,8+7=15!", 13), ("3+5=8,8-7=1.", 26)]


def test_a_token_belongs_to_the_step_in_which_it_ends():
    # one token for "\nc": the newline that ends the first step lies in the second
    tokenizer = byte_tokenizer("\n|c")

    assert cut("ab\ncd", tokenizer=tokenizer) == [("ab\n", 2), ("cd", 5)]


def test_a_step_inside_a_token_joins_the_next():
    tokenizer = byte_tokenizer(".|b", ".b|.", ".b.|c")

    found = cut("a.b.cd", r"\.", tokenizer)

    assert found == [("a.", 1), ("b.cd", 4)]


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK])
def test_a_characters_bytes_stay_together(tokenizer):
    found = cut("a😀\n😀b\nc", tokenizer=tokenizer)

    assert found == [("a😀\n", 6), ("😀b\n", 12), ("c", 14)]


def test_steps_are_cut_around_a_split_character():
    ids = BYTES.encode("ab\n😀", add_special_tokens=False)[:-2]
    completion = Rollout.of_one_turn(
        text=BYTES.decode(ids),
        token_ids=tuple(ids),
        logprobs=(0.0,) * len(ids),
        end_reason="length",
    )

    steps = cut_steps(completion, pattern="\n", tokenizer=BYTES)

    assert steps == [Step("ab\n", 3), Step("\ufffd", 5)]


def test_steps_are_cut_around_half_a_surrogate_pair(monkeypatch):
    completion = Rollout.of_one_turn(
        text="a\ud83d\nb", token_ids=(1,) * 5, logprobs=(0.0,) * 5, end_reason="stop"
    )
    monkeypatch.setattr(
        PreTrainedTokenizerFast,
        "decode",
        lambda _, ids, **__: completion.text[: len(ids)],
    )

    steps = cut_steps(completion, pattern=r"\n", tokenizer=BYTES)

    assert steps == [Step("a\ud83d\n", 3), Step("b", 5)]


texts = st.text(st.sampled_from("ab é\n.😀€"), max_size=30)


def slow_ends(text: str) -> list[int]:
    """The character in which each byte's token ends, counted from 1."""
    return [
        index + 1 for index, letter in enumerate(text) for _ in letter.encode("utf-8")
    ]


@given(
    texts, st.sampled_from([r"\n+", r"[.]", r"é|€"]), st.sampled_from(["end", "begin"])
)
def test_steps_are_the_whole_completion_and_agree_with_its_tokens(
    text, pattern, boundary
):
    found = cut(text, pattern, boundary=boundary)

    assert "".join(part for part, _ in found) == text
    ends = [end for _, end in found]
    assert ends == sorted(set(ends))
    assert ends[-1] == len(text.encode()) + 1
    reached = 0
    for part, end in found[:-1]:
        reached += len(part)
        assert end == sum(index <= reached for index in slow_ends(text))
        assert part.strip()


@given(texts)
def test_both_kinds_of_tokenizers_find_the_same_steps(text):
    text = text.replace("é", "c").replace(".", "a")

    by_bytes = [part for part, _ in cut(text)]
    by_characters = [part for part, _ in cut(text, tokenizer=FALLBACK)]

    assert by_bytes == by_characters


def test_each_step_is_scored_alone():
    config = RewardConfig.model_validate(
        {
            "recipe": {"rules": [{"name": "any", "kind": "length"}]},
            "step_recipe": {
                "rules": [
                    {"name": "b", "kind": "regex", "params": {"pattern": "b"}},
                    {"name": "answer", "kind": "exact_answer", "weight": 0},
                ]
            },
            "step_pattern": r"\.",
        }
    )
    completions = [(written("a.b.a"), written("b"))]

    prompts = [make_prompt()]

    (found,) = HERE.begin(prompts, config, tokenizer=BYTES).finish(completions)

    assert found.step_scores == (((2, 0.0), (4, 1.0), (6, 0.0)), ((2, 1.0),))
    (whole,) = HERE.begin(prompts, config).finish(completions)
    assert found.scores == whole.scores
    assert whole.step_scores is None


@pytest.mark.parametrize(
    ("boundary", "expected"), [("end", [2, 4, 6]), ("begin", [1, 3, 6])]
)
def test_the_settings_say_on_which_side_of_a_match_a_step_ends(boundary, expected):
    length = {"rules": [{"name": "length", "kind": "length"}]}
    config = RewardConfig.model_validate(
        {
            "recipe": length,
            "step_recipe": length,
            "step_pattern": r"\.",
            "step_boundary": boundary,
        }
    )

    begun = HERE.begin([make_prompt()], config, tokenizer=BYTES)
    (found,) = begun.finish([(written("a.b.a"),)])

    assert found.step_scores is not None
    assert [end for end, _ in found.step_scores[0]] == expected


def test_a_step_is_shown_with_what_stands_before_it(monkeypatch):
    seen: list[Sample] = []

    def note(self: Scorer, recipe: object, samples: list[Sample], **_: object) -> Any:
        seen.extend(samples)
        return partial(_judge_nothing, samples)

    monkeypatch.setattr(Scorer, "submit", note)
    length = {"rules": [{"name": "any", "kind": "length"}]}
    config = RewardConfig.model_validate(
        {"recipe": length, "step_recipe": length, "step_pattern": r"\."}
    )

    begun = replace(make_prompt(), text="?So ", begun="So ")
    for prompt in (make_prompt(), begun):
        HERE.begin([prompt], config, tokenizer=BYTES).finish(
            [(written("a.b.c"), written(""))]
        )

    shown = [(s.prompt, s.begun, s.before, s.completion) for s in seen]
    texts = [("", "a."), ("a.", "b."), ("a.b.", "c"), ("", "")]
    plain, of_begun = shown[:6], shown[6:]
    assert plain[:2] == [("?", "", "", "a.b.c"), ("?", "", "", "")]
    assert plain[2:] == [("?", "", *text) for text in texts]
    assert of_begun[:2] == [("?", "So ", "", "a.b.c"), ("?", "So ", "", "")]
    assert of_begun[2:] == [("?", "", f"So {before}", text) for before, text in texts]


def _judge_nothing(samples: list[Sample]) -> Scored:
    return Scored(scores=[Score(0.0, {}, {}) for _ in samples], seconds=0.0)
