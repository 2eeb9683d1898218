"""A tokenizer with a chat template."""

from pathlib import Path

# Like some published ones it knows no system role.
CHAT = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "<u>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def save_chat_model(folder: Path, template: str = CHAT) -> None:
    """Its tokens are bytes, and two special ones."""
    # Loaded with the test that needs it: it takes seconds.
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({mark: at for at, mark in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"additional_special_tokens": ["<u>", "<a>"]})
    fast.chat_template = template
    fast.save_pretrained(str(folder))
