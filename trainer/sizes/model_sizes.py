"""Sizes of models and reward models, from config.json and file headers.

The dashboard uses it, so it imports no torch. The activations of reward models are left
out: `batch_tokens` bounds them, and they are freed after each batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.config import RunConfig
from trainer.config.reading import why_unreadable
from trainer.disk import open_inside
from trainer.rewards.rules.reward_model import RewardModelParams

_TOO_LARGE = 10**10  # for a size of any model
# Two matrices in the feed-forward part in place of three.
_UNGATED = {"bloom", "gpt2", "gpt_neox", "gptj", "opt", "phi", "starcoder2"}
# These tie input and output embedding where their config.json does not say.
_TIED = {"bloom", "gemma", "gemma2", "gemma3_text", "gpt2", "opt", "starcoder2"}
# A further normalisation of queries and keys.
_QUERY_NORM = {"gemma3_text", "olmo2", "qwen3", "qwen3_moe"}
# Forms of `model.policy`: of these the form is "flat", unless a layer has a window or
# positions depend on the text's length.
_FLAT = {"internlm3", "llama", "mistral", "qwen2", "qwen3"}
_FLAT_ROPES = ("default", "linear", "llama3")
# Their layers keep a state, or attend in a way of their own. All others are packed.
_PADDED = {
    *("bamba", "bloom", "codegen", "deepseek_v32", "doge", "falcon", "falcon_h1"),
    *("falcon_mamba", "gpt_neo", "gpt_oss", "gptj", "granitemoehybrid", "jamba"),
    *("kimi_linear", "lfm2", "lfm2_moe", "lfm3", "llama4_text", "mamba", "mamba2"),
    *("mimo_v2_flash", "minimax", "mpt", "nemotron", "nemotron_h", "olmo_hybrid"),
    *("openai-gpt", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
    *("recurrent_gemma", "rwkv", "stablelm", "xglm", "xlstm", "zamba2"),
}
Form = Literal["flat", "packed", "padded"]


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
    form: Form = "packed"  # of an update's pass; all but "padded" share prompts
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
        expert = (3 if self.is_gated else 2) * self.hidden * self.inner
        router = self.hidden * self.experts
        return self.layers * (self.experts * expert + router)

    @property
    def num_parameters(self) -> int:
        """All weights; biases, which are a thousandth of them, are left out."""
        tables = self.vocabulary * (1 if self.is_tied else 2) + self.positions
        others = (tables + 2 * self.layers + 1) * self.hidden  # norms among them
        return self.num_linear + self.num_expert + others


def read_dimensions(path: str) -> Dimensions:
    """Return the sizes of the model in a folder.

    Raises:
        ValueError: it holds none, or one whose sizes are not known.
    """
    file = Path(path) / "config.json"
    try:
        with open_inside(Path(path), file.name) as opened:
            config = json.load(opened)
    except OSError:
        raise ValueError(
            f"{file} not found. Memory can be estimated only for model folders on "
            "this machine."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} is not valid JSON: {why_unreadable(error)}."
        ) from None
    if not isinstance(config, dict):
        raise ValueError(
            f"{file} is not a JSON object but {str(config)[:40]!r}. Set model.path to "
            "a folder that save_pretrained wrote."
        )
    return dimensions_of(config)


def dimensions_of(model_config: Mapping[str, Any]) -> Dimensions:
    """Return the sizes in a model's configuration, by whichever names it has for them.

    Raises:
        ValueError: one is missing.
    """
    part = model_config.get("text_config")  # of a model that takes pictures too
    config = part if part and isinstance(part, dict) else model_config
    kind = str(config.get("model_type", ""))

    def first(*names: str, default: int | None = None) -> int:
        for name in names:
            value = config.get(name)
            # True and False are no sizes
            if type(value) is int and 0 < value < _TOO_LARGE:
                return value
        if default is None:
            raise ValueError(
                f'The configuration of this "{kind}" model has no {names[0]}, so its '
                "memory cannot be estimated."
            )
        return default

    hidden = first("hidden_size", "n_embd")
    heads = first("num_attention_heads", "n_head")
    experts = first("num_experts", "num_local_experts", "n_routed_experts", default=1)
    inner = first("intermediate_size", "n_inner", default=4 * hidden)
    if experts > 1:
        inner = first("moe_intermediate_size", default=inner)
    return Dimensions(
        layers=first("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=first("num_key_value_heads", default=heads),
        head_size=first("head_dim", default=hidden // heads),
        inner=inner,
        vocabulary=first("vocab_size"),
        positions=first("n_positions", "max_position_embeddings", default=0)
        if kind in ("gpt2", "opt")
        else 0,
        is_gated=kind not in _UNGATED,
        is_tied=bool(config.get("tie_word_embeddings", kind in _TIED)),
        has_query_norm=kind in _QUERY_NORM,
        form=_form_of(config, kind),
        experts=experts,
        active_experts=first("num_experts_per_tok", default=1) if experts > 1 else 1,
    )


def _form_of(config: Mapping[str, Any], kind: str) -> Form:
    if kind in _PADDED or config.get("attn_logit_softcapping"):
        return "padded"
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    ropes = rope if isinstance(rope, dict) else {}
    is_flat = (
        kind in _FLAT
        and not config.get("use_sliding_window")
        and (kind != "mistral" or config.get("sliding_window") is None)
        and config.get("hidden_act", "silu") == "silu"
        and ropes.get("rope_type", ropes.get("type", "default")) in _FLAT_ROPES
    )
    return "flat" if is_flat else "packed"


# safetensors' own limit is 100 MB; the largest published headers have some hundred KB.
_LARGEST_HEADER = 10_000_000
_LARGEST_INDEX = 10_000_000
_MOST_FILES = 1_000
_LARGEST_HEADERS = 40_000_000  # of all files together
_FLOAT32 = 4
_FLOATS = {"F64", "F32", "F16", "BF16"}
_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """Bytes, by where they lie, of each process of the run."""

    beside_policy: int = 0
    elsewhere: int = 0  # on the CPU, where the policy is on a GPU, or the other way
    unknown: tuple[str, ...] = ()  # paths of models that are not to be seen here


def weigh_reward_models(config: RunConfig, *, on_gpu: bool) -> RewardWeights:
    """Return all of the run's: a model of one phase stays in memory for the others.

    Args:
        config: of the run.
        on_gpu: what "auto" means for a device.
    """
    policy_on_gpu = takes_gpu(config.model.device, on_gpu=on_gpu)
    beside = elsewhere = 0
    unknown: dict[str, None] = {}
    for params in _models(config):
        is_fast = takes_gpu(params.device, on_gpu=on_gpu)
        try:
            num_bytes = weights_in(
                Path(params.path), bytes_each=2 if is_fast else _FLOAT32
            )
        except ValueError:
            unknown[params.path] = None
            continue
        if is_fast == policy_on_gpu:
            beside += num_bytes
        else:
            elsewhere += num_bytes
    return RewardWeights(
        beside_policy=beside, elsewhere=elsewhere, unknown=tuple(unknown)
    )


def takes_gpu(device: str, *, on_gpu: bool) -> bool:
    """Return whether what has this `device` setting is on a GPU; `on_gpu`: there is
    one.
    """
    return device == "cuda" or (device == "auto" and on_gpu)


def _models(config: RunConfig) -> Iterator[RewardModelParams]:
    """Yield each that is loaded: two rules that read one model alike share it."""
    seen = set()
    for phase in config.phase_configs:
        for recipe in phase.config.reward.recipes:
            for rule in recipe.rules:
                params = rule.checked_params()
                if not isinstance(params, RewardModelParams):
                    continue
                loaded = params.model_dump_json(exclude={"low", "high"})
                if loaded not in seen:
                    seen.add(loaded)
                    yield params


def weights_in(folder: Path, *, bytes_each: int) -> int:
    """Return bytes of a folder's weights in memory, floats at `bytes_each`.

    Raises:
        ValueError: the folder has no safetensors that can be read.
    """
    num_bytes, room = 0, _LARGEST_HEADERS
    for path in _files(folder):
        tree, length = _read_header(path, room=room)
        room -= length
        num_bytes += sum(
            _bytes_of(tensor, bytes_each)
            for name, tensor in tree.items()
            if name != "__metadata__"
        )
    return num_bytes


def _bytes_of(tensor: Any, bytes_each: int) -> int:
    try:
        kind, shape = tensor["dtype"], tensor["shape"]
        count = math.prod(int(size) for size in shape)
        return count * (bytes_each if kind in _FLOATS else _BYTES.get(kind, 1))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise ValueError("Not a safetensors header.") from error


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    try:
        with open_inside(folder, index.name) as file:
            data = file.read(_LARGEST_INDEX + 1)
    except OSError:
        return [folder / "model.safetensors"]
    if len(data) > _LARGEST_INDEX:
        raise ValueError(f"{index} is too large.")
    try:
        places = json.loads(data)["weight_map"].values()
        names = {Path(str(name)).name for name in places}
    except (
        OSError,
        ValueError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise ValueError(f"{index} names no files.") from error
    if len(names) > _MOST_FILES:
        raise ValueError(f"{index} names {len(names):,} files.")
    return [folder / name for name in sorted(names)]


def _read_header(path: Path, *, room: int) -> tuple[dict[str, Any], int]:
    """And its length, which `room` bounds too."""
    try:
        with open_inside(path.parent, path.name) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_LARGEST_HEADER, room):
                raise ValueError(f"The header of {path} is too large.")
            tree = json.loads(file.read(length))
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read.") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} has no safetensors header.")
    return tree, length
