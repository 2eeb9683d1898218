"""What rules see of an answer that the row begins."""

from dataclasses import replace

import pytest

from tests.trainer.rewards.scores import BY_THEMSELVES, recipe_of
from trainer.rewards.model_judge.question import make_question
from trainer.rewards.rule import Sample, split_prefill
from trainer.rewards.rules import RULES, examples_of
from trainer.rewards.rules.reward_model import _conversation
from trainer.rewards.scoring import score_all

# They measure what the policy wrote.
MEASURES = {"length", "soft_overlong", "cosine_length", "length_rank", "repetition"}
CHAT = [{"role": "user", "content": "2+2?"}]
SAMPLE = Sample(
    "<u>2+2?<a>", "4.", "4", {"level": 1}, CHAT, is_chat=True, begun="It is "
)
COHORT = """
def reward(prompt, completion, answer):
    return float((prompt, completion) == ("<u>2+2?<a>", "It is 4."))
"""
TRL = """
def reward(prompts, completions, **kwargs):
    said = [{"role": "assistant", "content": "It is 4."}]
    return [float(p == CHAT and c == said) for p, c in zip(prompts, completions)]
"""
VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == "It is 4.")
"""
VERIFIERS = """
def reward(prompt, completion, answer, info):
    said = [{"role": "assistant", "content": "It is 4."}]
    return float(prompt == CHAT and completion == said)
"""


@pytest.mark.parametrize("kind", sorted(set(BY_THEMSELVES) - MEASURES))
def test_a_rule_judges_the_whole_answer(kind):
    passing, failing = examples_of(RULES[kind])
    for example in [*passing, *failing]:
        group = [
            example.sample,
            *(replace(example.sample, completion=text) for text in example.others),
        ]
        half = len(example.sample.completion) // 2
        halves = [
            replace(
                sample,
                begun=sample.completion[:half],
                completion=sample.completion[half:],
            )
            for sample in group
        ]
        recipe = recipe_of(kind, **example.params)

        assert score_all(recipe, halves) == score_all(recipe, group), example


@pytest.mark.parametrize("kind", ["length", "repetition"])
def test_what_measures_writing_leaves_out_what_was_begun(kind):
    params = {"maximum": 5} if kind == "length" else {}
    begun = replace(SAMPLE, begun="so it is so it is so it is so it is ")

    (score,) = score_all(recipe_of(kind, **params), [begun])

    assert score == score_all(recipe_of(kind, **params), [replace(begun, begun="")])[0]


def test_thinking_that_the_row_opens_is_found():
    sample = Sample(
        "?", "4</think><answer>5</answer>", "5", begun="Hm.\n<think>\nIs it "
    )

    def total(kind, **params):
        return score_all(recipe_of(kind, **params), [sample])[0].total

    assert total("exact_answer") == 1
    assert total("tag_count") == 1
    opened = {"outer_space": "allowed", "completion_prefix": "<think>"}
    assert total("format_tags", **opened) == 0  # of "Hm."
    sample = replace(sample, begun="<think>")
    assert total("format_tags", **opened) == 1
    sample = replace(sample, begun="Hm.\n<think>\n")
    assert total("regex", pattern="(?s)Hm.*</answer>", match="whole") == 1


@pytest.mark.parametrize("source", [COHORT, TRL, VERL, VERIFIERS])
def test_a_function_gets_the_answer_merged(source):
    recipe = recipe_of("python_function", source=f"CHAT = {CHAT!r}\n{source}")

    (score,) = score_all(recipe, [SAMPLE])

    assert (score.total, score.errors) == (1, {})


def test_judges_and_reward_models_read_the_answer_merged():
    question = make_question("", "{prompt}|{completion}|{before}", SAMPLE)

    assert dict(question.values) == {
        "prompt": "2+2?",
        "completion": "It is 4.",
        "before": "",
    }
    said = {"role": "assistant", "content": "It is 4."}
    assert _conversation(SAMPLE) == [*CHAT, said]
    assert _conversation(replace(SAMPLE, begun="", before="It is ")) == [*CHAT, said]


def test_a_conversation_is_split_from_the_answer_that_it_begins():
    said = {"role": "assistant", "content": " It "}

    assert split_prefill([*CHAT, said], "<b>") == (CHAT, " It <b>")
    assert split_prefill(CHAT, "<b>") == (CHAT, "")
    assert split_prefill([]) == ([], "")
