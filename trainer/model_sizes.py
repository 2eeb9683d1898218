"""The sizes of a language model's parts, read from its config.json alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOO_LARGE = 10**10  # for a size of any model
# Two matrices in the feed-forward part in place of three.
_UNGATED = {"bloom", "gpt2", "gpt_neox", "gptj", "opt", "phi", "starcoder2"}
# These tie input and output embedding where their config.json does not say.
_TIED = {"bloom", "gemma", "gemma2", "gemma3_text", "gpt2", "opt", "starcoder2"}
# A further normalisation of queries and keys.
_QUERY_NORM = {"gemma3_text", "olmo2", "qwen3", "qwen3_moe"}
# `model.architecture` has them trained without padding, where no layer has a window.
_FLAT = {"llama", "mistral", "qwen2", "qwen3"}


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """A decoder's sizes, in numbers.

    >>> Dimensions(
    ...     layers=2, hidden=8, heads=2, kv_heads=1, head_size=4, inner=16,
    ...     vocabulary=100, positions=0, is_gated=True, is_tied=True,
    ... ).num_parameters
    1992
    """

    layers: int
    hidden: int  # H
    heads: int
    kv_heads: int
    head_size: int
    inner: int  # width of the feed-forward part, of one expert where there are some
    vocabulary: int  # V
    positions: int  # learned ones
    is_gated: bool
    is_tied: bool
    has_query_norm: bool = False
    is_flat: bool = False  # trained without padding, prompts shared
    experts: int = 1
    active_experts: int = 1

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of one layer's linear maps, but for experts; by ending."""
        attention = {
            "q_proj": (self.hidden, self.query_size),
            "k_proj": (self.hidden, self.kv_size),
            "v_proj": (self.hidden, self.kv_size),
            "o_proj": (self.query_size, self.hidden),
        }
        if self.experts > 1:  # transformers keeps experts as one tensor, no layers
            return attention
        inner = {
            "up_proj": (self.hidden, self.inner),
            "down_proj": (self.inner, self.hidden),
        }
        gate = {"gate_proj": (self.hidden, self.inner)} if self.is_gated else {}
        return attention | inner | gate

    @property
    def num_linear(self) -> int:
        """Weights of all linear maps in the layers."""
        return self.layers * sum(n * m for n, m in self.linear_layers.values())

    @property
    def num_expert(self) -> int:
        if self.experts == 1:
            return 0
        matrices = 3 if self.is_gated else 2
        one = matrices * self.hidden * self.inner
        router = self.hidden * self.experts
        return self.layers * (self.experts * one + router)

    @property
    def num_embedding(self) -> int:
        tables = self.vocabulary * (1 if self.is_tied else 2) + self.positions
        return tables * self.hidden

    @property
    def num_parameters(self) -> int:
        """All weights; biases, which are a thousandth of them, are left out."""
        norms = (2 * self.layers + 1) * self.hidden
        return self.num_linear + self.num_expert + self.num_embedding + norms


def read_dimensions(path: str) -> Dimensions:
    """The sizes of the model in a folder.

    Raises:
        ValueError: it holds none, or one whose sizes are not known.
    """
    file = Path(path) / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except OSError:
        raise ValueError(
            f"There is no {file}. Memory is estimated from a model folder on this "
            "machine: set model.path to one."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(
            f"{file} holds no object but {str(config)[:40]!r}. Set model.path to a "
            "folder that save_pretrained wrote."
        )
    return dimensions_of(config)


def dimensions_of(model_config: Mapping[str, Any]) -> Dimensions:
    """The sizes in a model's configuration, by whichever names it has for them.

    Raises:
        ValueError: one is missing.
    """
    part = model_config.get("text_config")  # of a model that takes pictures too
    config = part if part and isinstance(part, dict) else model_config
    kind = str(config.get("model_type", ""))

    def first(*names: str, default: int | None = None) -> int:
        for name in names:
            value = config.get(name)
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            if 0 < value < _TOO_LARGE:
                return value
        if default is None:
            raise ValueError(
                f'The configuration of a "{kind}" model has no {names[0]}, so its '
                "memory cannot be estimated."
            )
        return default

    hidden = first("hidden_size", "n_embd")
    heads = first("num_attention_heads", "n_head")
    experts = first("num_experts", "num_local_experts", "n_routed_experts", default=1)
    inner = first("intermediate_size", "n_inner", default=4 * hidden)
    if experts > 1:
        inner = first("moe_intermediate_size", default=inner)
    has_positions = kind in ("gpt2", "opt")
    return Dimensions(
        layers=first("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=first("num_key_value_heads", default=heads),
        head_size=first("head_dim", default=hidden // heads),
        inner=inner,
        vocabulary=first("vocab_size"),
        positions=first("n_positions", "max_position_embeddings", default=0)
        if has_positions
        else 0,
        is_gated=kind not in _UNGATED,
        is_tied=bool(config.get("tie_word_embeddings", kind in _TIED)),
        has_query_norm=kind in _QUERY_NORM,
        is_flat=kind in _FLAT
        and not _has_window(config, kind)
        and config.get("hidden_act", "silu") == "silu",
        experts=experts,
        active_experts=first("num_experts_per_tok", default=1) if experts > 1 else 1,
    )


def _has_window(config: Mapping[str, Any], kind: str) -> bool:
    if kind == "mistral":
        return config.get("sliding_window") is not None
    return bool(config.get("use_sliding_window"))
