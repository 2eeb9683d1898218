"""Scores of a reward model, in a process of its own."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from trainer.config import ModelConfig
from trainer.host import num_cores
from trainer.hub import check_source
from trainer.model.loading import pick_device, pick_dtype, refuse_missing
from trainer.model.packing import split_by_length
from trainer.rewards.child import questions, send, take_over_stdout
from trainer.rewards.rule import message_text
from trainer.tokenizers import first_line, load_tokenizer

Messages = Sequence[Mapping[str, Any]]
_NO_ID = -1  # of a token that is in no text


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The model, and what is read from it."""

    path: str
    revision: str | None
    head: Literal["sequence", "token"]
    label: str
    score_as: Literal["raw", "sigmoid", "probability"]
    device: Literal["auto", "cpu", "cuda"]
    max_tokens: int  # of a text; what is beyond is left out
    batch_tokens: int


@dataclass(frozen=True)
class _Text:
    ids: list[int]
    types: list[int]  # none, where the model has no use for them


class Classifier:
    """A loaded model. It scores conversations by their last message."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            ValueError: the model cannot be loaded, is no classifier, or has not the
                label.
        """
        check_source(settings.path, revision=settings.revision)
        config = ModelConfig(path=settings.path, device=settings.device)
        device = _own_device(pick_device(config, setting="the rule's device"))
        self._settings = settings
        self._device = device
        self._tokenizer = load_tokenizer(settings.path, revision=settings.revision)
        self._model = _load(settings, dtype=pick_dtype(config, device)).to(device)  # type: ignore[arg-type]  # torch overloads it
        self._label = _label(self._model, settings)
        self._batch_tokens = settings.batch_tokens
        pad = self._model.config.pad_token_id
        if pad is None:
            pad = self._tokenizer.pad_token_id
        # Models find a text's last token by its padding. Where none is known, nothing
        # may be padded, and only texts of one length go together.
        self._pads = pad is not None
        self._model.config.pad_token_id = pad if self._pads else _NO_ID
        # Which of a pair of texts a token is of, for models such as BERT.
        self._has_types = "token_type_ids" in self._tokenizer.model_input_names and (
            getattr(self._model.config, "type_vocab_size", 0) > 1
        )

    @torch.inference_mode()
    def scores(self, conversations: Sequence[Messages]) -> list[float]:
        """Return a number for each, in order, as the settings ask for it."""
        texts = [self._encode(messages) for messages in conversations]
        scores = [0.0] * len(texts)
        for rows in self._batches(texts):
            for row, score in zip(rows, self._forward(texts, rows), strict=True):
                scores[row] = score
        return scores

    def _batches(self, texts: Sequence[_Text]) -> list[list[int]]:
        lengths = [len(text.ids) for text in texts]
        batches = split_by_length(lengths, max_tokens=self._batch_tokens)
        if self._pads:
            return batches
        equal: dict[tuple[int, int], list[int]] = {}
        for number, rows in enumerate(batches):
            for row in rows:
                equal.setdefault((number, lengths[row]), []).append(row)
        return list(equal.values())

    def _forward(self, texts: Sequence[_Text], rows: list[int]) -> list[float]:
        """Halved until it fits, where a GPU's memory does not hold a batch."""
        try:
            return self._logits([texts[row] for row in rows])
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        torch.cuda.empty_cache()
        longest = max(len(texts[row].ids) for row in rows)
        self._batch_tokens = max(longest, longest * len(rows) // 2)
        half = (len(rows) + 1) // 2
        parts = rows[:half], rows[half:]
        return [score for part in parts for score in self._forward(texts, part)]

    def _logits(self, texts: Sequence[_Text]) -> list[float]:
        lengths = torch.tensor([len(text.ids) for text in texts])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        padding = max(0, self._model.config.pad_token_id)
        inputs = {
            "input_ids": _padded(mask, [text.ids for text in texts], padding),
            "attention_mask": mask.long(),
        }
        if texts[0].types:
            inputs["token_type_ids"] = _padded(mask, [text.types for text in texts], 0)
        on_device = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        logits = self._model(**on_device).logits.float()
        if self._settings.head == "token":
            logits = logits[torch.arange(len(texts)), lengths - 1]
        return [float(value) for value in self._read(logits)]

    def _read(self, logits: torch.Tensor) -> torch.Tensor:
        """Read the score [B] from the [B, labels] logits of each text."""
        if self._settings.score_as == "probability":
            return logits.softmax(dim=-1)[:, self._label]
        chosen = logits[:, self._label]
        return chosen.sigmoid() if self._settings.score_as == "sigmoid" else chosen

    def _encode(self, messages: Messages) -> _Text:
        """Encode with the model's own chat template, or as prompt and reply where it
        has none.

        A classifier of tokens is to read the end of the reply, so it is not closed.
        """
        tokenizer, limit = self._tokenizer, self._limit
        cut = {"truncation": True, "max_length": limit}
        if tokenizer.chat_template is not None:
            text = tokenizer.apply_chat_template(
                [_readable(message, tokenizer) for message in messages],
                tokenize=False,
                continue_final_message=self._settings.head == "token",
            )
            assert isinstance(text, str)
            encoding = tokenizer(text, add_special_tokens=False, **cut)
        else:
            *others, reply = messages
            prompt = "\n".join(map(message_text, others))
            encoding = tokenizer(prompt, reply["content"], **cut)
        # no model can read a text of no token at all
        ids = list(encoding["input_ids"]) or [max(0, self._model.config.pad_token_id)]
        return _Text(ids, list(encoding["token_type_ids"]) if self._has_types else [])

    @property
    def _limit(self) -> int:
        longest = getattr(self._model.config, "max_position_embeddings", None)
        limit = self._settings.max_tokens
        return limit if longest is None else min(limit, longest)


def _readable(
    message: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Return a message that calls tools, as text for a chat template that knows of
    none.
    """
    if message.get("tool_calls") and "tool_calls" not in str(tokenizer.chat_template):
        return {"role": message["role"], "content": message_text(message)}
    return dict(message)


def _padded(
    mask: torch.Tensor, rows: Sequence[Sequence[int]], padding: int
) -> torch.Tensor:
    """Give numbers where the [B, L] mask is true, row by row, and padding elsewhere."""
    padded = torch.full(mask.shape, padding)
    padded[mask] = torch.tensor([number for row in rows for number in row])
    return padded


def _load(settings: Settings, *, dtype: torch.dtype) -> PreTrainedModel:
    kind: Any = (
        AutoModelForSequenceClassification
        if settings.head == "sequence"
        else AutoModelForTokenClassification
    )
    try:
        model, info = kind.from_pretrained(
            settings.path,
            revision=settings.revision or "main",
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,  # else a person at a terminal is asked
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"The reward model {settings.path} cannot be loaded: {first_line(error)}"
        ) from error
    assert isinstance(model, PreTrainedModel)
    missing = sorted(info["missing_keys"])
    body = f"{model.base_model_prefix}."
    refuse_missing(settings.path, [name for name in missing if name.startswith(body)])
    if missing:
        # A language model loads too, and what would score is then random.
        raise ValueError(
            f"{settings.path} is not a {settings.head} classifier: it has no "
            f"{missing[0]}. Choose a reward model, or the other head."
        )
    model.eval()
    return model


def _label(model: PreTrainedModel, settings: Settings) -> int:
    """Return the place of the label that is the score."""
    labels = model.config.id2label or {}
    names = {str(name): int(index) for index, name in labels.items()}
    if settings.label in names:
        return names[settings.label]
    if settings.label.isdecimal() and int(settings.label) < len(names):
        return int(settings.label)
    if not settings.label and len(names) == 1:
        return 0
    first_labels = ", ".join(list(names)[:20])
    what = f"no label {settings.label!r}" if settings.label else "several labels"
    raise ValueError(
        f"{settings.path} has {what}. Set label to one of: {first_labels}; or to its "
        f"number, 0 to {len(names) - 1}."
    )


def _own_device(device: torch.device) -> torch.device:
    """Return the GPU that the trainer beside this process has."""
    if device.type != "cuda":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    return torch.device("cuda", index)


def main() -> int:
    """Give a line when ready, and one for each question, until standard input ends."""
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # It computes while the trainer samples, which has most of the cores.
    torch.set_num_threads(max(1, num_cores() // 2))
    models: dict[Settings, Classifier] = {}
    send(replies, {})
    for question in questions():
        send(replies, _answer(question, models))
    return 0


def _answer(
    question: dict[str, Any], models: dict[Settings, Classifier]
) -> dict[str, Any]:
    settings = Settings(**question["settings"])
    try:
        if settings not in models:
            models[settings] = Classifier(settings)
        return {"scores": models[settings].scores(question["conversations"])}
    except torch.OutOfMemoryError as error:
        return {"problem": f"Not enough memory for it: {first_line(error)}"}
    except RuntimeError:
        raise  # a GPU that failed fails this process from then on; another one may do
    except Exception as error:  # noqa: BLE001 - a model's files may hold anything
        return {"problem": str(error) or type(error).__name__}


if __name__ == "__main__":
    sys.exit(main())
