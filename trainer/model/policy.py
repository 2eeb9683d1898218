"""The policy: the language model in training, or a frozen copy of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainer.config import ModelConfig
from trainer.errors import is_out_of_memory
from trainer.host import tick
from trainer.hub import check_source
from trainer.model.attention import takes_varlen
from trainer.model.kernels import (
    flat_hidden,
    num_windows,
    packed_hidden,
    use_attention,
    use_compiled_layers,
    use_fused_kernels,
    use_plain_kernels,
    use_plain_layers,
)
from trainer.model.loading import (
    AdapterWeights,
    has_four_bits,
    is_built_like_llama,
    load_model,
    model_fingerprint,
)
from trainer.model.logprobs import (
    LogitMap,
    token_logprobs,
    token_logprobs_and_kl,
)
from trainer.model.packing import Batch, MicroBatch, TrainingSample
from trainer.tokenizers import first_line, load_tokenizer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from trainer.model.lora import Adapters


_TRIAL_TOKENS = 128  # a pass of few tokens skips what some layers do in chunks


class Policy:
    """A causal language model with its tokenizer, split at its output embedding."""

    passes_alone = True  # no other process takes part in its passes
    shards_are_masters = False  # kept in float32, though computed with in less
    num_shards = 1  # processes that each have a part of its weights
    replicas: ProcessGroup | None = None  # those with the same shards, if there are any

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        adapters: Adapters | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        body: Any = model.base_model
        # `model.model` as in Llama 4
        self.body = getattr(model, "model", body) if body is model else body
        head = model.get_output_embeddings()
        if not isinstance(head, torch.nn.Linear):
            raise ValueError(
                f"{type(model).__name__} has no standard output embedding. Choose a "
                "causal language model."
            )
        self.head = head
        config: Any = model.config.get_text_config()
        scales = [getattr(config, name, None) or 1.0 for name in _FACTORS]
        divisor = getattr(config, "logits_scaling", None) or 1.0
        scales.append(divisor if config.model_type == "hyperclovax" else 1 / divisor)
        caps = (getattr(config, name, None) for name in _CAPS)
        self.logit_map = LogitMap(math.prod(scales), next(filter(None, caps), None))
        self._adapters = adapters
        # How micro-batches go through the model: packed rows with shared prompts by our
        # own pass ("flat") or transformers', or transformers' with padded rows.
        self.form: Literal["flat", "packed", "padded"] = (
            "flat" if is_built_like_llama(model) else "padded"
        )
        self.is_varlen = False  # packed rows' attention is one kernel
        self.longest = 1  # tokens that its rotation is chosen for
        self.slowed = ""  # why a slower way was taken than the device offers
        self.eos_ids = _eos_ids(model, tokenizer)
        _switch_dropout_off(model)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def end_with(self, ids: Collection[int]) -> None:
        """Let a completion also end with these tokens, here and where it is saved."""
        if more := {*ids} - {*self.eos_ids}:
            self.eos_ids = tuple(sorted(more.union(self.eos_ids)))
            self.model.generation_config.eos_token_id = list(self.eos_ids)

    @property
    def is_packed(self) -> bool:
        """True where completions of a micro-batch share their prompt's pass."""
        return self.form != "padded"

    @property
    def whole(self) -> Policy:
        """The policy with all of its weights in this process: itself."""
        return self

    def gather_whole(self) -> None:
        """Bring `whole` up to date, which all processes must ask for."""

    def shard(self, fixed: Policy, *, keeps_ends: bool) -> Policy:
        """Return a fixed model in as many parts as this one: whole.

        `keeps_ends`: its embeddings are read outside of its passes.
        """
        return fixed

    def copied(self, *, shares_fixed: bool = False) -> Policy:
        """Return another one with weights of its own, to be sampled from.

        With `shares_fixed`, weights that are not trained are the same tensors.
        """
        weights = self.model.parameters() if shares_fixed else ()
        frozen = {id(weight): weight for weight in weights if not weight.requires_grad}
        model = copy.deepcopy(self.model, frozen)
        model.eval()
        adapters = None if self._adapters is None else self._adapters.of(model)
        policy = Policy(model, self.tokenizer, adapters=adapters)
        policy.form, policy.is_varlen = self.form, self.is_varlen
        policy.longest = self.longest
        return policy

    def set_checkpointing(self, *, on: bool) -> None:
        """Choose whether the backward pass recomputes the layers' activations."""
        if on and self.model.supports_gradient_checkpointing:
            self.model.activation_checkpointing_enable({"use_reentrant": False})
        elif self.model.is_activation_checkpointing:
            self.model.activation_checkpointing_disable()
        # Layers recompute in training mode only. In it, modules inside of them would
        # drop units or add noise to a router, by settings of many names.
        for module in self.model.modules():
            module.training = on and getattr(module, "gradient_checkpointing", False)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep layers from recomputing inside, which would switch its cache off."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def fix_longest(self, longest: int) -> bool:
        """Rotate each text as one of `longest` tokens; returns whether that matters.

        transformers chooses some rotations by the longest text of a batch, so a text's
        log-probs would depend on the texts beside it. vLLM chooses longrope's by the
        longest text that it takes, and others by the model: see `why_not_rotated`.

        Raises:
            ValueError: log-probs of texts as long as that depend on others anyway.
        """
        attended = getattr(self.model.config, "keep_window_size", longest)
        if longest > attended:
            raise ValueError(
                f"{type(self.model).__name__} attends to {attended:,} tokens and "
                "chooses among equal ones by the batch, so log-probs of texts of up to "
                f"{longest:,} tokens are not its own. Lower data.max_prompt_tokens or "
                "rollout.max_new_tokens."
            )
        self.longest = longest
        last = torch.tensor([[longest - 1]], device=self.device)
        changing: list[Any] = [
            module
            for module in self.model.modules()
            for kind in ("dynamic", "longrope")
            if kind in str(getattr(module, "rope_type", ""))
        ]
        for module in changing:
            is_by_layer = isinstance(module.rope_type, dict)
            for layer_type in module.rope_type if is_by_layer else [None]:
                module(last.float(), last, *filter(None, [layer_type]))
            # else the next batch chose again
            module.rope_type = (
                dict.fromkeys(module.rope_type, "default") if is_by_layer else "default"
            )
        return bool(changing)

    @property
    def num_embeddings(self) -> int:
        """Tokens that the model can read, which the tokenizer may have more of."""
        return len(self.model.get_input_embeddings().get_parameter("weight"))

    @property
    def num_positions(self) -> int | None:
        """Tokens of the longest text that the model was made for, if it says so."""
        config: Any = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V] of hidden states [N, H], in float32."""
        return self.logit_map(self.head(hidden))

    def hidden(self, micro: MicroBatch) -> torch.Tensor:
        """Give last hidden states [N, H] where a micro-batch's tokens are predicted."""
        tick()
        if self.form == "padded":
            return self._padded_hidden(micro)
        layout = micro.layout(self.head.weight.dtype, is_varlen=self.is_varlen)
        if self.form == "packed":
            return packed_hidden(self.model, layout)
        recomputes = self.model.is_activation_checkpointing
        return flat_hidden(self.body, layout, recomputes=recomputes)

    def _padded_hidden(self, micro: MicroBatch) -> torch.Tensor:
        hidden: torch.Tensor = self.body(input_ids=micro.input_ids, use_cache=False)[0]
        # Mamba's is in float32, whatever its weights are in
        return hidden.flatten(0, 1).index_select(0, micro.places).to(self.head.weight)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the model's weights with their names, its adapters merged into them."""
        if self._adapters is not None:
            return self._adapters.merged_weights()
        return ((name, p.detach()) for name, p in self.model.named_parameters())

    def base_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """`weights` without the adapters."""
        if self._adapters is not None:
            return self._adapters.base_weights()
        return self.weights()

    def adapter_weights(self) -> AdapterWeights | None:
        """Return the adapters by themselves; None where there are none."""
        return None if self._adapters is None else self._adapters.weights()

    @property
    def has_adapters(self) -> bool:
        return self._adapters is not None

    def adapters_off(self) -> AbstractContextManager[None]:
        """Make this, inside, the model that the adapters were put into."""
        return nullcontext() if self._adapters is None else self._adapters.off()

    def save(self, folder: Path) -> None:
        """Write a model folder that any program can load, its adapters merged."""
        if self._adapters is not None:
            self._adapters.save_merged(folder)
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save_adapters(self, folder: Path) -> None:
        """Write the adapters by themselves, for a policy to go on from."""
        assert self._adapters is not None
        self._adapters.save(folder)

    def logprobs(
        self, micro: MicroBatch, *, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give log-probs and entropies of a micro-batch's completion tokens, [B, T]."""
        logprob, entropy = token_logprobs(
            self.hidden(micro),
            self.head,
            micro.targets,
            temperature=temperature,
            logit_map=self.logit_map,
        )
        return micro.spread(logprob), micro.spread(entropy)

    def logprobs_and_kl(
        self, micro: MicroBatch, reference: Policy, *, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`logprobs` with KL(policy || reference) over the vocabulary, [B, T] each.

        The reference's adapters, if it has any, are off while it is asked.
        """
        with torch.no_grad(), reference.adapters_off():
            reference_hidden = reference.hidden(micro)
        flat_values = token_logprobs_and_kl(
            self.hidden(micro),
            self.head,
            micro.targets,
            reference_hidden=reference_hidden,
            reference_head=reference.head,
            temperature=temperature,
            logit_map=self.logit_map,
            reference_logit_map=reference.logit_map,
        )
        logprob, entropy, kl = (micro.spread(values) for values in flat_values)
        return logprob, entropy, kl

    def check_split(self) -> None:
        """Refuse a model whose logits are more than its head's product and `logit_map`.

        The head must read the last hidden state as it is. What the model does to the
        product is seen in float32, with logits of 10, where a bound of theirs shows.

        Raises:
            ValueError: such as a model with a layer between the two.
        """
        places = (
            getattr(self.model.config, "max_position_embeddings", None) or _TRIAL_TOKENS
        )
        ids = torch.arange(min(places, _TRIAL_TOKENS), device=self.device)[None]
        ids %= self.head.weight.shape[0]
        seen: dict[str, torch.Tensor] = {}

        def note(_body: object, _inputs: object, output: Any) -> None:
            seen["hidden"] = output[0]

        def stretch(_head: object, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            product = output.float()
            seen["read"] = inputs[0]
            seen["product"] = 10 * product / product.abs().max().clamp(min=1e-9)
            return seen["product"]

        hooks = (
            self.body.register_forward_hook(note),
            self.head.register_forward_hook(stretch),
        )
        with torch.no_grad():
            logits = self.model(input_ids=ids, use_cache=False).logits
            for hook in hooks:
                hook.remove()
            if "hidden" not in seen:  # OPT goes past its body to the layers
                seen["hidden"] = self.body(input_ids=ids, use_cache=False)[0]
        if not self._explains(logits, **seen):
            raise ValueError(
                f"The logits of {type(self.model).__name__} are not the output "
                "embedding of its last hidden state, so its log-probs cannot be "
                "computed. Choose another model."
            )

    def _explains(
        self,
        logits: torch.Tensor,
        *,
        hidden: torch.Tensor,
        read: torch.Tensor | None = None,
        product: torch.Tensor | None = None,
    ) -> bool:
        """Return whether logits are what `logits` makes of hidden states.

        Args:
            logits: of the model.
            hidden: that its body returns.
            read: what its head reads; None, as `product`: it has not been called.
            product: what the head returns.
        """
        if read is None or product is None or logits.shape != product.shape:
            return False
        scale, cap = self.logit_map
        if not torch.equal(read, hidden.to(read.dtype)):
            # MiniCPM3 scales the hidden states in place of their product
            if scale == 1 or not torch.allclose(read, hidden * scale, rtol=1e-2):
                return False
            scale = 1.0
        gap = (logits - LogitMap(scale, cap)(product)).abs().max().item()
        return gap <= 1e-4  # with logits of 10, equal computations differ by 1e-6

    def check_checkpointing(self) -> None:
        """Refuse a model that computes something else with gradient checkpointing.

        Raises:
            ValueError: such as a model whose layers add noise in training mode.
        """
        if self.form == "flat" or not self.model.supports_gradient_checkpointing:
            return
        micro = _trial(self)
        with torch.no_grad():
            first, second = self.hidden(micro), self.hidden(micro)
            self.set_checkpointing(on=True)
            recomputed = self.hidden(micro)
            self.set_checkpointing(on=False)
        # not 0 where a GPU adds up a mixture's experts in any order
        noise = (second - first).abs().max().item()
        gap = (recomputed - first).abs().max().item()
        if not gap <= 10 * noise:
            raise ValueError(
                f"{type(self.model).__name__} computes other hidden states with "
                f"gradient checkpointing (they differ by {gap:.3g}). Set "
                "model.gradient_checkpointing to false."
            )

    def choose_form(self) -> str:
        """Choose the fastest form of packed rows with the results of padded rows.

        On a CPU, Llama-like models keep Cohort's forward pass, which is faster there.

        Returns:
            Why a slower form was chosen on a GPU; "" if none was.
        """
        is_cuda = self.device.type == "cuda"
        if self.form == "flat" and not is_cuda:
            return ""
        micro = _trial(self)
        with torch.no_grad():
            expected = self._padded_hidden(micro).float()
        usual, before = self.form, use_attention(self.model)
        if is_cuda:
            use_fused_kernels(self.model)
        self.form, self.is_varlen = "packed", False
        failure, head_sizes = self._try(micro, expected)
        if failure:
            self.form = usual
            use_attention(self.model, before)
            use_plain_kernels(self.model)
            return f"Packing is not available ({failure})" if usual == "flat" else ""
        if not takes_varlen(self.model, head_sizes):
            return ""
        self.is_varlen = True
        failure, _ = self._try(micro, expected)
        self.is_varlen = not failure
        return f"FlashAttention is not available ({failure})" if failure else ""

    def compile_layers(self, *, on: bool) -> None:
        """Compile a GPU's updates of a model built like Llama, if that works here, or
        leave them plain again.
        """
        layers: Any = self.body.layers if is_built_like_llama(self.model) else ()
        can_be = self.form == "packed" and not has_four_bits(self.model)
        is_on = any("forward" in vars(layer) for layer in layers)
        if is_on and not on:
            use_plain_layers(layers)
        if is_on or not on or not can_be:
            return
        micro = _trial(self)
        with torch.no_grad():
            expected = self._padded_hidden(micro).float()
        use_compiled_layers(layers)
        failure, _ = self._try(micro, expected)
        try:
            weights = [w for w in layers[0].parameters() if w.requires_grad]
            torch.autograd.grad(self.hidden(micro).sum(), weights)
        except Exception as error:  # noqa: BLE001 - compilers fail in many ways
            failure = failure or f"{type(error).__name__}: {first_line(error)}"
        if failure:
            use_plain_layers(layers)
            self.slowed = self.slowed or f"Layers cannot be compiled ({failure})"
        else:
            # where adapters are off, say, and that cannot be compiled, it is left plain
            torch._dynamo.config.suppress_errors = True

    def _try(self, micro: MicroBatch, expected: torch.Tensor) -> tuple[str, set[int]]:
        """Return what is wrong with a packed pass, "" if nothing is; and sizes of its
        heads.

        Of bfloat16, hidden states bear a difference that a wrong model would too. So a
        layer may ask for nothing that `model.attention` does not know, and all must
        call it, with the windows that the configuration names.
        """
        layout = micro.layout(self.head.weight.dtype, is_varlen=self.is_varlen)
        windows: list[int | None] = []
        head_sizes: set[int] = set()

        def attend(*inputs: Any, window: int | None = None, **options: Any) -> Any:
            windows.append(window)
            head_sizes.add(inputs[0].shape[-1])
            with torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in inputs]
                attended = layout.attention(*leaves, window=window, **options)
                # a kernel may compute sizes of heads for which it has no gradient
                torch.autograd.grad(attended.sum(), leaves)
            return attended.detach()

        try:
            with torch.no_grad():
                packed = packed_hidden(self.model, replace(layout, attention=attend))
            config: Any = self.model.config.get_text_config()
            calls = len(windows) // config.num_hidden_layers  # 2 in DiffLlama's layers
            expected_windows = num_windows(self.model)
        except Exception as error:  # noqa: BLE001 - any model may come, and do anything
            return f"{type(error).__name__}: {first_line(error)}", head_sizes
        if not windows or len(windows) != calls * config.num_hidden_layers:
            return "a layer has its own attention, or none", head_sizes
        num_windowed = len(windows) - windows.count(None)
        if expected_windows is None or num_windowed != calls * expected_windows:
            return "a layer has its own window", head_sizes
        gap = ((packed.float() - expected).norm() / expected.norm()).item()
        allowed = 0.03 if packed.dtype == torch.bfloat16 else 5e-3
        if packed.dtype == torch.float32 and packed.device.type == "cpu":
            allowed = 1e-4  # equal computations differ by 1e-6
        if not gap <= allowed:
            return f"hidden states have a relative difference of {gap:.2g}", head_sizes
        return "", head_sizes


def _trial(policy: Policy) -> MicroBatch:
    """Return a few tokens, with prompts that are shared."""
    lengths = ((3, 4), (3, 2), (5, 3), (5, 1))
    vocabulary = policy.head.weight.shape[0]
    samples = tuple(
        TrainingSample(
            prompt_ids=tuple(place % vocabulary for place in range(prompt)),
            completion_ids=tuple(
                (7 * prompt + place) % vocabulary for place in range(completion)
            ),
            sampling_logprobs=(0.0,) * completion,
        )
        for prompt, completion in lengths
    )
    return Batch(samples).pack([*range(len(samples))], device=policy.device)


def load_policy(
    config: ModelConfig,
    *,
    path: str | None = None,
    tokenizer_path: str | None = None,
    adapters: Path | None = None,
) -> Policy:
    """Load the model of a configuration; `path` takes its weights from elsewhere.

    Where adapters are asked for they are new ones, which change nothing yet, or those
    saved in the folder `adapters`.

    Raises:
        ValueError: no such folder, no weights or tokenizer in it, no hub, or no GPU.
    """
    source = config.path if path is None else path
    revision = config.revision if path is None else None
    check_source(source, revision=revision)
    tokenizer = load_tokenizer(tokenizer_path or source, revision=revision)
    model = load_model(source, config, revision=revision)
    lora = None
    if config.lora_rank > 0:
        # peft takes seconds to load, so only those who need it wait for it
        from trainer.model.lora import Adapters, add_adapters  # noqa: PLC0415

        add_adapters(model, config)
        lora = Adapters(model, base=model_fingerprint(source, revision=revision))
        if adapters is not None:
            lora.load(adapters)
    policy = Policy(model, tokenizer, adapters=lora)
    try:
        policy.check_split()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"{type(model).__name__} cannot compute in {model.dtype} on this device: "
            f"{first_line(error)}. Set model.dtype to another one, or choose another "
            "model."
        ) from error
    policy.slowed = policy.choose_form()
    is_on = config.gradient_checkpointing is True
    if is_on and not model.supports_gradient_checkpointing:
        raise ValueError(
            f"{type(model).__name__} has no gradient checkpointing. Set "
            "model.gradient_checkpointing to false."
        )
    # "auto" is decided at the first step, and means off on a CPU
    if is_on or (config.gradient_checkpointing and policy.device.type == "cuda"):
        policy.check_checkpointing()
        policy.set_checkpointing(on=is_on)
    return policy


# What different models call the factor on their logits, and the bound.
_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


def _eos_ids(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Give tokens that end a completion: the model's own list, and the tokenizer's."""
    eos_ids: set[int] = set()
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        eos_ids.update([ids] if isinstance(ids, int) else ids or [])
    if isinstance(tokenizer.eos_token_id, int):
        eos_ids.add(tokenizer.eos_token_id)
    if not eos_ids:
        raise ValueError(
            "Neither the model nor its tokenizer has an end-of-sequence token, so "
            "every completion would be truncated. Set eos_token in the tokenizer."
        )
    return tuple(sorted(eos_ids))


def _switch_dropout_off(model: PreTrainedModel) -> None:
    # A dropped unit would make the policy that is trained differ from the one sampled.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        settings = vars(module)
        for name in [name for name in settings if "drop" in name]:
            if isinstance(settings[name], float):  # Bloom's is a module
                settings[name] = 0.0
