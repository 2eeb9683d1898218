"""Settings of model, data, rollouts and reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainer.config.part import Auto, NoEffect, Part, about
from trainer.rewards.rule import refuse_bad_pattern
from trainer.rewards.spec import Recipe

NO_ADAPTERS: NoEffect = {"the LoRA rank is 0": {"model.lora_rank": [0]}}
NOT_SAMPLED: NoEffect = {"no completions are sampled": {"rollout.source": ["dataset"]}}
NOT_IN_PROCESS: NoEffect = {
    "vLLM is not started by the trainer": {
        "rollout.engine": ["transformers", "vllm_server"]
    }
}
NO_SERVER: NoEffect = {
    "the engine is not a server": {"rollout.engine": ["auto", "transformers", "vllm"]}
}
NO_STEPS: NoEffect = {
    "credit is not process": {
        "advantage.credit": [
            *("outcome", "pass_at_k", "pass_at_k_analytic"),
            *("indicator", "ones", "preference"),
        ]
    }
}
_WEIGHTS = "the checkpoint contains this model's weights"
_ADAPTERS = "the checkpoint's adapters have this shape"


class ModelConfig(Part):
    """Starting weights, data type, LoRA and quantization."""

    path: str = Field(
        min_length=1,
        title="Model",
        description="Model folder, or Hugging Face model ID. In a TOML file, a "
        "folder may be relative to the file.",
        json_schema_extra=about(fork=_WEIGHTS),
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        title="Data type",
        description="Data type of the weights. auto: bfloat16 on GPUs that support "
        "it, else float32.",
        json_schema_extra=about(
            section="Weights",
            choices={
                "auto": "bfloat16 on GPUs that support it",
                "float32": "4 bytes per number",
                "bfloat16": "2 bytes per number",
            },
            fork="the checkpoint's weights and optimizer states have this data type",
        ),
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Device of the model. auto: a GPU if there is one.",
        json_schema_extra=about(
            choices={
                "auto": "a GPU if there is one",
                "cpu": "no GPU",
                "cuda": "an NVIDIA GPU",
            }
        ),
    )
    tf32: bool = Field(
        True,
        title="TF32",
        description="Use TF32 for float32 matrix products on a GPU: several times "
        "faster, with 10 mantissa bits instead of 23.",
        json_schema_extra=about(
            no_effect={"the model runs on a CPU": {"model.device": ["cpu"]}}
        ),
    )
    revision: str | None = Field(
        None,
        description="Branch, tag or commit of a Hugging Face model.",
        json_schema_extra=about(fork=_WEIGHTS),
    )
    gradient_checkpointing: Auto[bool] = Field(
        "auto",
        description="Recompute activations in the backward pass: less memory, about a "
        "third more time. auto: on a GPU where 16,384 tokens do not fit "
        "otherwise.",
        json_schema_extra=about(
            choices={
                "auto": "on if the GPU has too little memory",
                "on": "less memory, more time",
                "off": "more memory, less time",
            }
        ),
    )
    lora_rank: int = Field(
        0,
        ge=0,
        le=1_024,
        title="LoRA rank",
        description="Rank of the adapters. 0: full fine-tuning.",
        json_schema_extra=about(main=6, fork=_ADAPTERS),
    )
    lora_alpha: float | None = Field(
        None,
        gt=0,
        le=10_000,
        title="LoRA alpha",
        description="The adapters are scaled by alpha / rank. Empty: twice the rank.",
        json_schema_extra=about(
            section="Adapters", no_effect=NO_ADAPTERS, fork=_ADAPTERS
        ),
    )
    lora_targets: str = Field(
        "all-linear",
        min_length=1,
        title="LoRA targets",
        description="Target modules: all-linear, or name suffixes separated by "
        "commas, such as q_proj,v_proj.",
        json_schema_extra=about(no_effect=NO_ADAPTERS, fork=_ADAPTERS),
    )
    quantization: Literal["none", "4bit"] = Field(
        "none",
        description="Quantization of the frozen base weights. 4bit: NF4 with "
        "bitsandbytes.",
        json_schema_extra=about(
            choices={"none": "no quantization", "4bit": "NF4, with adapters only"},
            fork="the adapters were trained with this quantization",
        ),
    )


class DataConfig(Part):
    """Prompts, and the rows held out for evaluation."""

    rows: str = Field(
        min_length=1,
        description="JSONL file. Each line has prompt, answer and columns.",
    )
    num_eval_rows: int = Field(
        64,
        ge=0,
        le=100_000,
        title="Held-out prompts",
        description="Rows kept out of training for evaluation.",
        json_schema_extra=about(unit="rows"),
    )
    system_prompt: str | None = Field(
        None,
        description="System message for every prompt.",
        json_schema_extra=about(is_long=True),
    )
    prompt_template: str | None = Field(
        None,
        description="Text with {prompt} and column names or dotted paths in braces. "
        "Default: the prompt alone.",
        json_schema_extra=about(is_long=True),
    )
    completion_prefix: str = Field(
        "", description="Prefix of every completion, such as <think>."
    )
    chat_template: Literal["auto", "none"] = Field(
        "auto",
        description="auto: use the tokenizer's chat template if it has one.",
        json_schema_extra=about(
            choices={
                "auto": "the tokenizer's, if it has one",
                "none": "the prompt unchanged",
            }
        ),
    )
    chat_template_kwargs: dict[str, Any] = Field(
        {},
        title="Chat template options",
        description="Values for the chat template, as a JSON object, such as "
        '{"enable_thinking": false}.',
        json_schema_extra=about(
            no_effect={"there is no chat template": {"data.chat_template": ["none"]}}
        ),
    )
    max_prompt_tokens: int = Field(
        512,
        ge=1,
        le=131_072,
        title="Prompt limit",
        description="A run with a longer prompt does not start.",
        json_schema_extra=about(unit="tokens"),
    )
    completion_column: str = Field(
        "completion",
        min_length=1,
        description="Column with the completion, when completions come from the "
        "dataset.",
        json_schema_extra=about(
            no_effect={
                "completions are sampled": {"rollout.source": ["policy", "start"]}
            }
        ),
    )

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_the_templates(cls, options: dict[str, Any]) -> dict[str, Any]:
        if taken := _RENDERED & options.keys():
            raise ValueError(
                f"{', '.join(sorted(taken))}: set by Cohort, not by the template's "
                "options"
            )
        return options


# What a prompt is rendered by, beside its template's options.
_RENDERED = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}
# Settings of sampling that change the choice of tokens, but not their log-probs.
_RESTRICTIONS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def restrictions_of(sampling: Any) -> str:
    """Name those that are set, with their values; "": none."""
    values = {name: getattr(sampling, name) for name in _RESTRICTIONS}
    return ", ".join(
        f"{name} = {value:g}"
        for name, value in values.items()
        if value != _RESTRICTIONS[name]
    )


class RolloutConfig(Part):
    """Engine, temperature and batch of sampling."""

    prompts_per_step: int = Field(
        16,
        ge=1,
        le=65_536,
        description="Number of distinct prompts per step.",
        json_schema_extra=about(unit="prompts", main=2),
    )
    group_size: int = Field(
        8,
        ge=1,
        le=1_024,
        description="Completions per prompt.",
        json_schema_extra=about(unit="completions", main=3),
    )
    max_new_tokens: int = Field(
        256,
        ge=1,
        le=131_072,
        description="Longer completions are truncated.",
        json_schema_extra=about(unit="tokens", main=4),
    )
    temperature: float = Field(
        1.0,
        gt=0,
        le=5,
        description="Sampling temperature, also used for the log-probs. Higher values "
        "give more diversity.",
        json_schema_extra=about(section="Sampling"),
    )
    source: Literal["policy", "start", "dataset"] = Field(
        "policy",
        title="Completion source",
        description="Source of the completions: the policy, the starting model (RFT) "
        "or the dataset (SFT).",
        json_schema_extra=about(
            choices={
                "policy": "the model in training",
                "start": "the starting model (RFT)",
                "dataset": "a dataset column (SFT)",
            },
        ),
    )
    one_step_off: bool = Field(
        False,
        title="One step off",
        description="Sample the next step's completions during this step's update, "
        "with the weights of one step earlier. Needs "
        "loss.importance_correction.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        title="Top-p",
        description="Sample from the most likely tokens with this total probability. "
        "1: from all.",
        json_schema_extra=about(no_effect=NOT_SAMPLED),
    )
    top_k: int = Field(
        0,
        ge=0,
        le=1_000_000,
        title="Top-k",
        description="Sample from the k most likely tokens. 0: from all.",
        json_schema_extra=about(unit="tokens", no_effect=NOT_SAMPLED),
    )
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        title="Min-p",
        description="Sample from tokens that are at least this share as likely as the "
        "likeliest. 0: from all.",
        json_schema_extra=about(no_effect=NOT_SAMPLED),
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        le=10,
        title="Repetition penalty",
        description="Divides positive logits, and multiplies negative ones, of tokens "
        "that the prompt or the completion has. 1: none. Completions are then not the "
        "policy's own: prefer 1.",
        json_schema_extra=about(no_effect=NOT_SAMPLED),
    )
    stop: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        [],
        max_length=8,
        title="Stop texts",
        description="Texts that end a completion, as a JSON list. A completion keeps "
        "the token in which such a text is complete.",
        json_schema_extra=about(is_json=True, no_effect=NOT_SAMPLED),
    )
    logprob_temperature: float | None = Field(
        None,
        gt=0,
        le=5,
        title="Log-prob temperature",
        description="Temperature of the log-probs in the ratio and the KL. Empty: the "
        "sampling temperature.",
    )
    max_batch_rows: int = Field(
        512,
        ge=1,
        le=65_536,
        title="Sampling batch size",
        description="Maximum number of completions sampled at once.",
        json_schema_extra=about(
            unit="completions",
            no_effect={
                "the server sets its own limit": {"rollout.engine": ["vllm_server"]}
            },
        ),
    )
    engine: Literal["auto", "transformers", "vllm", "vllm_server"] = Field(
        "auto",
        description="Engine that samples the completions. transformers: the policy "
        "itself. vllm: a copy of it in vLLM, beside the trainer. vllm_server: vLLM on "
        "rollout servers. auto: vllm on a GPU if it is installed, supports the run "
        "and is expected to be faster, else transformers.",
        json_schema_extra=about(
            section="Engine",
            choices={
                "auto": "vLLM on a GPU, if it supports the run",
                "transformers": "the policy itself",
                "vllm": "a copy beside the trainer",
                "vllm_server": "a copy on rollout servers",
            },
            of_run=True,
        ),
    )
    decoding: Literal["auto", "plain"] = Field(
        "auto",
        description="Decoder of the transformers engine. auto: Cohort's decoder for "
        "models with the Llama architecture, else transformers' forward "
        "pass. plain: always transformers' forward pass, which is slower.",
        json_schema_extra=about(
            choices={
                "auto": "Cohort's decoder, if it supports the model",
                "plain": "transformers' forward pass",
            },
            no_effect={
                "vLLM has its own decoder": {"rollout.engine": ["vllm", "vllm_server"]}
            },
        ),
    )
    cache_gib: Auto[Annotated[float, Field(gt=0, le=10_000)]] = Field(
        "auto",
        title="vLLM KV cache",
        description="GPU memory for vLLM's KV cache, per GPU, in addition to the "
        "weights. auto: enough for the completions sampled at the same "
        "time, at most half of the free memory.",
        json_schema_extra=about(unit="GiB", no_effect=NOT_IN_PROCESS, of_run=True),
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        title="Tensor parallel size",
        description="Number of GPUs for vLLM's copy of the model, including the "
        "trainer's.",
        json_schema_extra=about(unit="GPUs", no_effect=NOT_IN_PROCESS, of_run=True),
    )
    sleep: Auto[bool] = Field(
        "auto",
        title="vLLM sleep mode",
        description="Free the GPU memory of vLLM's weights and KV cache during "
        "updates. No effect without a GPU. auto: if they use more than a "
        "quarter of the GPU's memory.",
        json_schema_extra=about(
            choices={
                "auto": "if they are large",
                "on": "less memory, more time",
                "off": "more memory, less time",
            },
            no_effect=NOT_IN_PROCESS,
            of_run=True,
        ),
    )
    url: str | None = Field(
        None,
        title="Rollout servers",
        description="URL of a rollout server, such as http://127.0.0.1:8700, or "
        "several separated by commas, which share each step's prompts.",
        json_schema_extra=about(no_effect=NO_SERVER, of_run=True),
    )
    token_file: str | None = Field(
        None,
        title="Token file of the rollout servers",
        description="File with their token.",
        json_schema_extra=about(no_effect=NO_SERVER, of_run=True),
    )
    server_gpus: int | None = Field(
        None,
        ge=1,
        le=1_024,
        title="GPUs of a rollout server",
        description="GPUs of each rollout server, to count its GPU-hours. A server of "
        "this release tells them itself.",
        json_schema_extra=about(unit="GPUs", no_effect=NO_SERVER, of_run=True),
    )
    dynamic_sampling: Literal["off", "drop", "refill"] = Field(
        "off",
        description="Groups with equal rewards. drop: leave them out of the batch. "
        "refill: sample other prompts instead (arXiv:2503.14476).",
        json_schema_extra=about(
            section="Groups without signal",
            choices={
                "off": "keep them in the batch",
                "drop": "leave them out of the batch",
                "refill": "sample other prompts instead",
            },
        ),
    )
    max_refills: int = Field(
        3,
        ge=1,
        le=100,
        title="Max refills",
        description="With refill, maximum number of extra sampling rounds per step.",
        json_schema_extra=about(
            unit="rounds",
            no_effect={
                "dynamic sampling does not refill": {
                    "rollout.dynamic_sampling": ["off", "drop"]
                }
            },
        ),
    )

    @classmethod
    def value_of(cls, name: str, value: Any) -> Any:
        if name == "decoding" and value == "graphs":
            return "auto"  # an earlier choice, which stored runs may hold
        return super().value_of(name, value)

    @property
    def urls(self) -> tuple[str, ...]:
        """The rollout servers' addresses, each by itself."""
        return tuple(url.strip() for url in (self.url or "").split(",") if url.strip())


_NOT_POOLS: NoEffect = {
    "the curriculum has no pools": {
        "curriculum.kind": ["off", "learnability", "target"]
    }
}
_NO_CURRICULUM: NoEffect = {"the curriculum is off": {"curriculum.kind": ["off"]}}
_Share = Annotated[float, Field(ge=0, le=1)]
_Weight = Annotated[float, Field(ge=0, le=1_000)]


class CurriculumConfig(Part):
    """Choice of each step's prompts by their pass rates."""

    kind: Literal["off", "pools", "learnability", "target"] = Field(
        "off",
        title="Curriculum",
        description="Weight of a prompt when a step's prompts are drawn. pools: by its "
        "pass rate. learnability: by what its group is expected to teach. target: by "
        "the nearness of its pass rate to a target.",
        json_schema_extra=about(
            choices={
                "off": "every prompt once per epoch",
                "pools": "pools by pass rate",
                "learnability": "groups that may teach first",
                "target": "pass rates near a target first",
            }
        ),
    )
    pool_bounds: list[_Share] = Field(
        [0.25, 0.75],
        min_length=2,
        max_length=2,
        description="Highest pass rates of the hard and of the normal pool.",
        json_schema_extra=about(is_json=True, no_effect=_NO_CURRICULUM),
    )
    pool_weights: list[_Weight] = Field(
        [0.2, 1.0, 0.2],
        min_length=3,
        max_length=3,
        description="Weights of a prompt in the hard, normal and easy pool.",
        json_schema_extra=about(is_json=True, no_effect=_NOT_POOLS),
    )
    score: Literal["signal", "variance"] = Field(
        "signal",
        description="signal: chance that the rewards of a group differ. variance: "
        "p(1 − p) of the pass rate p.",
        json_schema_extra=about(
            choices={
                "signal": "chance that rewards differ",
                "variance": "p(1 − p)",
            },
            no_effect={
                "the weight is another": {"curriculum.kind": ["off", "pools", "target"]}
            },
        ),
    )
    target: float = Field(
        0.5,
        ge=0,
        le=1,
        title="Target pass rate",
        description="Pass rate whose prompts have the highest weight.",
        json_schema_extra=about(
            no_effect={
                "the curriculum has no target": {
                    "curriculum.kind": ["off", "pools", "learnability"]
                }
            }
        ),
    )
    unseen_weight: _Weight = Field(
        1.0,
        description="Weight of a prompt without a pass rate.",
        json_schema_extra=about(section="Evidence", no_effect=_NO_CURRICULUM),
    )
    floor_weight: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Lowest weight, so that every prompt can be drawn.",
        json_schema_extra=about(no_effect=_NO_CURRICULUM),
    )
    decay: float = Field(
        0.5,
        ge=0,
        lt=1,
        title="Decay of evidence",
        description="Share of the earlier evidence that a new group leaves. Lower "
        "values follow the policy faster.",
        json_schema_extra=about(no_effect=_NO_CURRICULUM),
    )
    start_from: str | None = Field(
        None,
        title="Pass rates to start from",
        description="File of pass rates that By prompt exported: in the dashboard "
        "pass-rates-run-N.jsonl of the team's run N. Empty: every prompt is unseen.",
        json_schema_extra=about(no_effect=_NO_CURRICULUM, of_run=True),
    )
    drop_after: int = Field(
        0,
        ge=0,
        le=1_000,
        description="Groups in a row, all right or all wrong, after which a prompt is "
        "out. 0: never.",
        json_schema_extra=about(
            section="Gate", unit="groups", no_effect=_NO_CURRICULUM
        ),
    )
    recheck_every: int = Field(
        50,
        ge=1,
        le=1_000_000,
        description="Steps that a prompt stays out before it is drawn again.",
        json_schema_extra=about(
            unit="steps",
            no_effect=_NO_CURRICULUM
            | {"no prompt is dropped": {"curriculum.drop_after": [0]}},
        ),
    )

    @field_validator("pool_bounds")
    @classmethod
    def _bounds_rise(cls, bounds: list[float]) -> list[float]:
        if bounds != sorted(bounds):
            raise ValueError(
                f"The bounds must rise; got {bounds[0]:g} and {bounds[1]:g}. Swap them."
            )
        return bounds


class RewardConfig(Part):
    """Penalty for length, scores of steps, and allowed errors."""

    recipe: Recipe = Field(
        description=("Rules of the reward, and how their scores are combined.")
    )
    overlong_buffer_tokens: int = Field(
        0,
        ge=0,
        le=131_072,
        title="Overlong buffer",
        description="Penalty for completions within this many tokens of the limit, "
        "higher the closer they are (arXiv:2503.14476). 0: no penalty.",
        json_schema_extra=about(unit="tokens", section="Overlong completions"),
    )
    overlong_penalty: float = Field(
        1.0,
        ge=0,
        le=1_000,
        description="Penalty of a completion at the limit.",
        json_schema_extra=about(
            no_effect={
                "the overlong buffer is 0": {"reward.overlong_buffer_tokens": [0]}
            }
        ),
    )
    step_recipe: Recipe | None = Field(
        None,
        description="Rules that score each reasoning step. Required with "
        "advantage.credit = process.",
        json_schema_extra=about(no_effect=NO_STEPS),
    )
    step_pattern: str = Field(
        r"\n+",
        min_length=1,
        max_length=200,
        description="Regular expression (RE2) that separates reasoning steps: \\n\\n "
        "for paragraphs, Step \\d+: for such headings.",
        json_schema_extra=about(section="Reasoning steps", no_effect=NO_STEPS),
    )
    step_boundary: Literal["end", "begin"] = Field(
        "end",
        description="Whether a match ends a step, as a line break does, or begins "
        "one, as a heading does.",
        json_schema_extra=about(
            choices={"end": "the end of a step", "begin": "the beginning of a step"},
            no_effect=NO_STEPS,
        ),
    )
    num_workers: int | None = Field(
        None,
        ge=0,
        le=256,
        title="Scoring processes",
        description="Processes that score completions while others are sampled. 0: "
        "the trainer scores after sampling. Empty: 0, but up to 8 (one "
        "per spare core) for slow rules: math_verify, reasoning_gym and "
        "rules that need to know whether an answer is correct.",
        json_schema_extra=about(unit="processes", section="Scoring", of_run=True),
    )
    max_error_share: float = Field(
        0.2,
        ge=0,
        le=1,
        title="Errors allowed",
        description="When more than this share of a step's scores fail, for example "
        "because a grader is unreachable, the run skips the update, saves "
        "a checkpoint and pauses. Rows that a rule does not apply to do "
        "not count.",
        json_schema_extra=about(unit="share"),
    )

    _pattern_compiles = field_validator("step_pattern")(refuse_bad_pattern)

    @property
    def recipes(self) -> list[Recipe]:
        """That of completions, and that of their steps where there is one."""
        return [
            recipe for recipe in (self.recipe, self.step_recipe) if recipe is not None
        ]
