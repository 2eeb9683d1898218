"""Memory of a run by part, from a model's sizes and a configuration."""

from __future__ import annotations

from trainer.config import RunConfig
from trainer.config.run import PhaseConfig
from trainer.sizes.model_sizes import Dimensions, takes_gpu

_FLOAT32 = 4
# NF4 with a constant for every 64 weights, itself quantized (arXiv:2305.14314).
_NF4 = 4.127 / 8
# AdamW's two moments (arXiv:1711.05101); in 8 bits (arXiv:2110.02861) with a float32
# constant for every 256 numbers, as bitsandbytes has it.
_MOMENTS = {"adamw": 2 * _FLOAT32, "adamw_8bit": 2 * (1 + _FLOAT32 / 256)}
# `trainer.model.logprobs` holds so many logits at a time, keeps at most so many for the
# backward pass on a CPU, and has so many copies of a chunk while it computes.
_CHUNK, _KEPT, _CHUNK_COPIES = 16 * 2**20, 64 * 2**20, 3
# `trainer.rollout` has so many copies of a token's logits while it draws.
_DRAWING_COPIES = 5
# Prompt tokens that go through the model at once.
_PREFILL = 16_384
# Buffers of keys and values grow by so many tokens.
_CACHE_BLOCK = 64


class Footprint:
    """A model's sizes with what a run or phase does to them."""

    def __init__(
        self,
        sizes: Dimensions,
        phase: PhaseConfig,
        *,
        on_gpu: bool,
        tokens: int,
        recomputes: bool,
        num_shards: int,
        largest_set: int = 0,
        teacher: Dimensions | None = None,
        parks_teacher: bool = False,
    ) -> None:
        """Measure micro-batches of `tokens`, in place of what is configured.

        `recomputes`: with gradient checkpointing. `num_shards`: processes that share
        what is trained and the reference. `largest_set`: rows of the largest of
        `evaluation.sets`. `parks_teacher`: it is on the GPU only while it is asked.
        """
        self._sizes = sizes
        self._teacher = teacher
        self._parks_teacher = parks_teacher
        self._stage = phase
        self._num_held_out = max(phase.config.data.num_eval_rows, largest_set)
        config = self._config = phase.config
        self._is_on_gpu = takes_gpu(config.model.device, on_gpu=on_gpu)
        # a GPU of today has bfloat16
        halves = ("bfloat16", "auto") if self._is_on_gpu else ("bfloat16",)
        # a weight, an activation
        self._each = 2 if config.model.dtype in halves else _FLOAT32
        self._has_adapters = config.model.lora_rank > 0
        # adapters on a CPU are float32, see `trainer.model.lora`
        in_float32 = self._has_adapters and not self._is_on_gpu
        self._trained_each = _FLOAT32 if in_float32 else self._each
        self._has_masters = self._trained_each < _FLOAT32
        self._measures_start = config.samples_kl and not self._has_adapters
        # a norm keeps its input in float32, and its result to train its weights
        self._norm_bytes = _FLOAT32 + (0 if self._has_adapters else self._each)
        self._processes = config.distributed.num_ranks
        self._shards = num_shards
        self._recomputes = recomputes
        self._is_padded = is_padded = sizes.form == "padded"
        self._length = config.longest_sequence
        self._prompt = config.data.max_prompt_tokens
        rows = tokens // self._length if is_padded else _packed_rows(config, tokens)
        self._rows = rows = min(max(1, rows), _sequences_per_update(config))
        groups = -(-(rows - 1) // config.rollout.group_size) + 1
        self._num_prompts = rows if is_padded else min(rows, groups)
        self._num_new = rows * config.longest_completion
        self._tokens = self._num_new + self._num_prompts * self._prompt

    @property
    def weights(self) -> int:
        """The weights of the model and of the adapters."""
        return self._base + self._trained_each * self._num_adapter

    @property
    def _base(self) -> int:
        sizes = self._sizes
        if self._config.model.quantization == "none":
            return self._each * sizes.num_parameters
        others = sizes.num_parameters - sizes.num_linear
        return round(_NF4 * sizes.num_linear) + self._each * others

    @property
    def master_weights(self) -> int:
        if self._processes > 1:  # the model in parts, beside the whole one
            base = self._base if self._has_adapters else 0
            return (base + _FLOAT32 * self._num_trained) // self._shards
        return _FLOAT32 * self._num_trained if self._has_masters else 0

    @property
    def optimizer(self) -> int:
        moments = _MOMENTS[self._config.optim.optimizer] * self._num_trained
        return round(moments) // self._shards

    @property
    def gradients(self) -> int:
        """In float32; the embedding's also in its own format, while it is added up.

        Of several processes each has its part, and for a while those of a layer, the
        embedding and the head whole.
        """
        if self._processes > 1:
            sizes, bytes_each = self._sizes, self._each
            # FSDP gathers embedding and head together
            layer = (sizes.num_parameters - _ends_of(sizes)) // max(1, sizes.layers)
            passing = (_ends_of(sizes) + layer) * (bytes_each + _FLOAT32)
            return _FLOAT32 * self._num_trained // self._shards + passing
        own = 0
        if self._has_masters and not self._has_adapters:
            own = self._each * self._sizes.vocabulary * self._sizes.hidden
        return _FLOAT32 * self._num_trained + own

    @property
    def reference(self) -> int:
        """Further copies of the model that stand still, or follow in steps.

        Of several processes each has its part of a frozen reference, and its ends whole
        where a full KL reads them.
        """
        copies, sizes = 0, self._teacher or self._sizes
        whole = sizes.num_parameters
        if self._stage.reference_kind == "frozen" and not self._parks_teacher:
            # 4 bits cannot take over what was trained, nor do they hold a teacher
            is_whole = self._stage.reference_moves or self._teacher is not None
            copies = self._each * whole if is_whole else self._base
            if self._config.reference.mix_every_steps and self._each < _FLOAT32:
                copies += _FLOAT32 * whole
            is_full = self._config.loss.kl_estimator == "full"
            kept = _ends_of(sizes) if is_full else 0
            share = (kept + (whole - kept) / self._shards) / whole
            copies = round(share * copies)
        if self._config.rollout.source == "start":
            copies += self._base
        if self._measures_start and not self._is_on_gpu:
            copies += self._base
        return copies

    @property
    def measuring(self) -> int:
        """The start or the teacher, where it is on a GPU only while it is asked."""
        if self._parks_teacher and self._teacher is not None:
            return self._each * self._teacher.num_parameters
        return self._base if self._measures_start and self._is_on_gpu else 0

    @property
    def engine_weights(self) -> int:
        """vLLM's part of the model, on the trainer's GPU."""
        rollout = self._config.rollout
        if rollout.engine != "vllm":
            return 0
        return self._each * self._sizes.num_parameters // rollout.tensor_parallel_size

    def engine_cache(self, rows: int) -> int:
        """Return what vLLM needs there for so many completions of full length."""
        return self._cache(rows) // self._config.rollout.tensor_parallel_size

    @property
    def training(self) -> int:
        """The bytes held at any time, without what samples."""
        return self.weights + self.master_weights + self.optimizer + self.reference

    @property
    def snapshot(self) -> int:
        """The copy that is sampled from while the policy is trained.

        It shares what is not trained. Of several processes each has one anyway.
        """
        if self._processes > 1:
            return 0
        if self._has_adapters:
            return self._trained_each * self._num_adapter
        return self._each * self._sizes.num_parameters

    @property
    def activations(self) -> int:
        """The bytes for the backward pass: of every layer, or of one and all inputs.

        Counted over what a decoder layer of transformers keeps with flash or
        memory-saving attention, which never holds the [L, L] weights; the same count
        as in arXiv:2205.05198, section 4, without dropout.
        """
        if self._sizes.form == "flat":
            return self._flat_activations
        hidden, layers = self._sizes.hidden, self._sizes.layers
        layer = self._tokens * self._layer_bytes + self._prompt_copies
        last = self._tokens * hidden * self._norm_bytes + self._mask
        if self._recomputes:
            return layers * self._tokens * hidden * self._each + layer + last
        return layers * layer + last

    @property
    def _prompt_copies(self) -> int:
        """Keys and values of prompts, which a packed layer has for every completion."""
        rows = 0 if self._is_padded else self._rows
        return self._each * 2 * self._sizes.kv_size * rows * self._prompt

    @property
    def _mask(self) -> int:
        """The mask that packed attention adds to its logits."""
        return 0 if self._is_padded else self._each * self._num_new * self._length

    @property
    def _flat_activations(self) -> int:
        """The activations that our own pass keeps."""
        sizes, bytes_each, tokens = self._sizes, self._each, self._tokens
        # a norm's input and a float32 scale; queries and attention's output, padded,
        # and a float32 sum a head
        attention = bytes_each * (sizes.hidden + 2 * sizes.query_size)
        attention += _FLOAT32 * (1 + sizes.heads)
        if sizes.has_query_norm:
            attention += bytes_each * (sizes.query_size + sizes.kv_size)
            attention += _FLOAT32 * (sizes.heads + sizes.kv_heads)
        attention += self._inputs_kept("first", "attention")
        # a norm's again; gate and up
        mlp = bytes_each * (sizes.hidden + 2 * sizes.inner) + _FLOAT32
        mlp += self._inputs_kept("second", "inner")
        # the last layer's sees of a prompt its last token alone
        unasked = self._num_prompts * (self._prompt - 1)
        keys = bytes_each * 2 * sizes.kv_size * tokens + self._prompt_copies
        turns = bytes_each * 2 * sizes.head_size * tokens
        last = (
            self._num_new * (bytes_each * sizes.hidden + _FLOAT32) + self._mask + turns
        )
        layer = tokens * (attention + mlp) + keys
        if self._recomputes:
            return sizes.layers * tokens * sizes.hidden * bytes_each + layer + last
        return sizes.layers * layer - unasked * mlp + last

    def _inputs_kept(self, *which: str) -> int:
        """Return bytes of a token's inputs to a layer's linear maps that gradients
        need.

        `which` are some of those that `_INPUTS` names, each a tensor of its own.
        """
        layers = self._sizes.linear_layers
        targets = [name for name in self._targets if _INPUTS[name] in which]
        inputs = [layers[name][0] for name in targets]
        # adapters in float32 on bfloat16 make a copy each
        if self._each == self._trained_each:
            inputs = list({_INPUTS[n]: layers[n][0] for n in targets}.values())
        ranks = self._config.model.lora_rank * len(targets)
        return self._trained_each * (sum(inputs) + ranks)

    @property
    def _layer_bytes(self) -> int:
        """Bytes that one layer keeps of a token."""
        sizes, bytes_each = self._sizes, self._each
        inner = sizes.inner * sizes.active_experts
        normed = 2 * sizes.hidden
        if sizes.has_query_norm:
            normed += sizes.query_size + sizes.kv_size
        num_bytes = normed * self._norm_bytes
        # attention: queries and its output, keys and values, a float32 sum a head
        num_bytes += (
            bytes_each * 2 * (sizes.query_size + sizes.kv_size) + _FLOAT32 * sizes.heads
        )
        num_bytes += bytes_each * inner * (3 if sizes.is_gated else 1)
        return num_bytes + self._linear_input_bytes

    @property
    def _linear_input_bytes(self) -> int:
        """Inputs of linear maps that the gradient of their weights needs."""
        sizes = self._sizes
        # padded attention keeps its output itself
        attended = self._each * sizes.query_size
        if not self._has_adapters:
            active = sizes.inner * sizes.active_experts
            num_bytes = self._each * (2 * sizes.hidden + active)
            return num_bytes if self._is_padded else num_bytes + attended
        num_bytes = self._inputs_kept("first", "attention", "second", "inner")
        # adapters in float32 on bfloat16 have a copy
        is_kept_twice = self._each == self._trained_each and "o_proj" in self._targets
        return num_bytes - attended if is_kept_twice and self._is_padded else num_bytes

    @property
    def logits(self) -> int:
        """In float32, whatever the model computes in; and the last hidden states."""
        loss, sizes = self._config.loss, self._sizes
        new = self._config.longest_completion
        tokens = self._rows * (self._length - 1 if loss.include_prompt else new)
        values = tokens * sizes.vocabulary
        if loss.kl_estimator == "full" and loss.kl_coef > 0:
            values *= 2  # the reference's too
        kept_values = values if values <= _KEPT and not self._is_on_gpu else 0
        chunks = min(values, _CHUNK) * _CHUNK_COPIES
        head = 0 if self._has_adapters else sizes.vocabulary * sizes.hidden
        hidden = tokens * sizes.hidden * self._each
        return _FLOAT32 * (kept_values + chunks + head) + hidden

    def kv_cache(self, rows: int) -> int:
        """Return keys and values of so many completions sampled at the same time."""
        return self._cache(rows) if self.is_sampled else 0

    def _cache(self, rows: int) -> int:
        room = rows * (self._length + _CACHE_BLOCK)
        # and of one layer a second time, while its buffer grows
        return room * self._sizes.kv_size * self._each * (2 * self._sizes.layers + 1)

    @property
    def row_bytes(self) -> int:
        """The bytes of one more completion while it is sampled."""
        drawn = self._sizes.vocabulary * _FLOAT32 * _DRAWING_COPIES
        return self.kv_cache(1) + drawn

    def sampling(self, rows: int) -> int:
        """Return logits of the token being drawn, or what prompts need, if that is
        more.
        """
        if not self.is_sampled and not self.engine_weights:
            return 0
        sizes, rollout = self._sizes, self._config.rollout
        drawn = rows * sizes.vocabulary * _FLOAT32 * _DRAWING_COPIES
        prompts = max(1, rows // rollout.group_size)
        tokens = min(_PREFILL, prompts * self._config.data.max_prompt_tokens)
        inner = 3 * sizes.inner * sizes.active_experts
        return max(drawn, tokens * self._each * (inner + 2 * sizes.hidden))

    @property
    def is_sampled(self) -> bool:
        """True if a model of the trainer's own writes completions.

        "auto" takes vLLM only where it is installed, which an estimate cannot know.
        """
        rollout = self._config.rollout
        if rollout.source == "policy":
            return rollout.engine in ("auto", "transformers")
        return rollout.source == "start"

    @property
    def rows_sampled(self) -> int:
        """Completions that are sampled at the same time, if memory bears them."""
        num_rows = -(
            -most_completions(self._config, self._num_held_out) // self._processes
        )
        return min(num_rows, self._config.rollout.max_batch_rows)

    @property
    def _num_trained(self) -> int:
        return self._num_adapter or self._sizes.num_parameters

    @property
    def _num_adapter(self) -> int:
        """rank · (inputs + outputs) of each layer with one (arXiv:2106.09685)."""
        layers = self._sizes.linear_layers
        num_of_layer = sum(sum(layers[name]) for name in self._targets)
        return self._config.model.lora_rank * self._sizes.layers * num_of_layer

    @property
    def _targets(self) -> list[str]:
        """The linear maps of a layer that are trained, or have an adapter."""
        model, names = self._config.model, list(self._sizes.linear_layers)
        if not self._has_adapters or model.lora_targets == "all-linear":
            return names
        endings = {t.strip().rpartition(".")[2] for t in model.lora_targets.split(",")}
        return [name for name in names if name in endings]


def _ends_of(sizes: Dimensions) -> int:
    """Count the weights of embedding and head."""
    return sizes.vocabulary * sizes.hidden * (1 if sizes.is_tied else 2)


# Linear maps that read the same tensor; attention's output is kept by attention itself.
_INPUTS = {
    "q_proj": "first",
    "k_proj": "first",
    "v_proj": "first",
    "o_proj": "attention",
    "gate_proj": "second",
    "up_proj": "second",
    "down_proj": "inner",
}


def most_completions(config: RunConfig, num_held_out: int) -> int:
    """Return completions that a phase asks for together, in a step or an evaluation."""
    most = config.completions_per_step
    if config.evaluation.every_steps:
        held_out = num_held_out * config.evaluation.samples_per_prompt
        most = max(most, held_out)  # each set by itself
    return most


def largest_update(config: RunConfig, *, num_processes: int) -> int:
    """Return tokens of a process's part of an update at most."""
    sequences = -(-_sequences_per_update(config) // num_processes)
    return sequences * config.longest_sequence


def _packed_rows(config: RunConfig, tokens: int) -> int:
    """Get completions of full length in a micro-batch, as `model.packing` cuts them."""
    prompt, group = config.data.max_prompt_tokens, config.rollout.group_size
    tokens_of_sample = config.longest_completion + prompt / 4
    groups = int(tokens // (prompt + group * tokens_of_sample))
    return groups * group or int((tokens - prompt) // tokens_of_sample)


def _sequences_per_update(config: RunConfig) -> int:
    prompts = -(-config.rollout.prompts_per_step // config.optim.minibatches)
    return prompts * config.rollout.group_size
