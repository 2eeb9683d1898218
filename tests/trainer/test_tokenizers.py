"""Tokenizers are loaded as they were saved."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from trainer.tokenizers import load_tokenizer


def test_a_qwen2_folder_keeps_a_word_tokenizers_spaces(tmp_path):
    words = ["<eos>", "3", "5", " ", ">", "\n"]
    own = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}))
    own.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    own.decoder = decoders.Fuse()
    saved = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<eos>")
    saved.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=len(words)).save_pretrained(tmp_path)

    loaded = load_tokenizer(str(tmp_path))

    assert loaded.encode("3 5 >") == own.encode("3 5 >").ids == [1, 3, 2, 3, 4]
    assert loaded.decode([1, 3, 2]) == "3 5"
    assert loaded.eos_token_id == 0


def test_special_tokens_and_chat_template_come_along(tmp_path):
    own = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "<end>": 2}))
    saved = PreTrainedTokenizerFast(
        tokenizer_object=own, eos_token="<end>", bos_token="<s>"
    )
    saved.chat_template = "{{ messages[0]['content'] }}"
    saved.save_pretrained(tmp_path)

    loaded = load_tokenizer(str(tmp_path))

    assert (loaded.bos_token, loaded.eos_token) == ("<s>", "<end>")
    assert loaded.chat_template == saved.chat_template


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_auto_tokenizer_is_not_what_decides(tmp_path):
    """Should this fail one day, the detour around AutoTokenizer may go."""
    words = ["<eos>", "3", " ", "<unk>"]
    own = Tokenizer(
        models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>")
    )
    own.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<eos>").save_pretrained(
        tmp_path
    )
    Qwen2Config(vocab_size=len(words)).save_pretrained(tmp_path)

    chosen = AutoTokenizer.from_pretrained(tmp_path)

    assert chosen.encode("3 3") != load_tokenizer(str(tmp_path)).encode("3 3")
