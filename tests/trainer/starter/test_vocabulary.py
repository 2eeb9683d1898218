import random

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.bench.starter.countdown import (
    END,
    TAGS,
    all_problems,
    build_model,
    build_tokenizer,
    prompt_for,
    searching_text,
)
from trainer.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("starter") / "model"
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    "load", [load_tokenizer, AutoTokenizer.from_pretrained,
             PreTrainedTokenizerFast.from_pretrained]
)  # fmt: skip
def test_every_way_of_loading_gives_the_text_back(folder, load):
    tokenizer = load(str(folder))

    text = "3 5 7 > 1\n<think>3+5=8,8+7=15!</think>\n<answer>3+5-7</answer>"

    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token == END


def test_numbers_and_tags_are_single_tokens():
    tokenizer = build_tokenizer()

    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("12+30<think></answer>"))

    assert tokens == ["12", "+", "30", "<think>", "</answer>"]
    assert all(len(tokenizer.encode(tag)) == 1 for tag in TAGS)


def test_every_prompt_and_text_of_the_task_is_in_the_vocabulary():
    tokenizer = build_tokenizer()
    chance = random.Random(0)

    for problem in all_problems():
        text = prompt_for(problem, chance) + searching_text(
            problem, chance, hit_rate=0.2, give_up_rate=0.2, max_tries=6
        )
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_word_is_marked_as_such():
    tokenizer = build_tokenizer()

    assert tokenizer.unk_token_id in tokenizer.encode("hello")
