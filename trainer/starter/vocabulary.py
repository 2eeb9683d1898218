"""The starter's tokenizer: whole numbers and the four tags are single tokens."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_NUMBER = 99
_SIGNS = "+-*/=()>,.!? \n"
_PIECES = r"</?(?:think|answer)>|<(?:pad|unk|end)>|\d+|[\s\S]"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer that gives back every text in its vocabulary exactly."""
    words = [
        PAD,
        UNKNOWN,
        END,
        *TAGS,
        *_SIGNS,
        *(str(number) for number in range(MAX_NUMBER + 1)),
    ]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    # Without one, the pieces are joined with spaces between them.
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
