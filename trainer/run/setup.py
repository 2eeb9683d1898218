"""Prepares a run: model, data, engine, resume.

Each host checks what all processes must have in common: with an older copy of a file, a
process would train on other prompts or contribute other weights, without an error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import threading
from array import array
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
import transformers

from trainer.config import RunConfig, require_packages, without_model_paths
from trainer.config.agreement import complaints_of_many
from trainer.console import print_line
from trainer.curriculum import Beliefs, read_pass_rates
from trainer.data import Prompt, PromptRenderer, read_rows, split_rows
from trainer.events import RunResumed, RunStarted, Warned
from trainer.hub import check_source
from trainer.model.budget import MemoryBudget, memory_of
from trainer.model.loading import (
    NUM_ROWS,
    model_fingerprint,
    pick_device,
)
from trainer.model.policy import Policy
from trainer.model.reference import reference_server
from trainer.model.teacher import check_teacher, estimate_on, teachers_of
from trainer.output.checkpoint import (
    restore_policy,
    saved_beliefs,
    saved_controllers,
)
from trainer.output.journal import Journal
from trainer.output.log import EventLog
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import ALONE, World
from trainer.privileged import check_context
from trainer.rewards.sandbox.slot import find_sandbox
from trainer.rewards.spec import check_rules
from trainer.rollout.engine import OnSlowed, RolloutEngine, Slowed
from trainer.rollout.episodes import (
    check_environment,
    drops_thinking,
    make_renderer,
)
from trainer.rollout.prefetch import Prefetch
from trainer.rollout.select import (
    ask_servers,
    check_decoder,
    engine_name,
    make_engine,
)
from trainer.rollout.server_engine import SharedEngine
from trainer.rollout.sources import DatasetSource
from trainer.run.phases import data_order
from trainer.run.state import (
    Prompts,
    Run,
    RunPaths,
    RunState,
    warn_of_memory,
    warn_of_sampling,
)
from trainer.scoring import HERE, Scorer
from trainer.seeding import seed_torch

VERSION = "0.1.0"  # of Cohort, as in pyproject.toml


def check_consistent_setup(world: World, config: RunConfig) -> None:
    """Refuse processes that were asked for different runs, or would compute otherwise.

    It comes before all that the configuration has processes ask one another: with
    another engine, one would wait for an answer that no one is going to give.

    Raises:
        ValueError: naming the first process that has something else than the first.
    """
    if world.size > 1:
        tree = without_model_paths(config.model_dump(mode="json"))
        own = {
            # A folder has a place of its own on each host; `check_consistent_content`
            # compares what the model is.
            "run configuration": _digest([json.dumps(tree).encode()]),
            "torch": str(torch.__version__),
            "transformers": str(transformers.__version__),
        }
        _compare(world, own)


def check_consistent_content(
    world: World,
    *,
    policy: Policy,
    prompts: Iterable[Prompt],
    config: RunConfig,
    beliefs: Beliefs | None,
) -> None:
    """Refuse processes that have read different files.

    Raises:
        ValueError: naming the first process that has something else than the first.
    """
    if world.size > 1:
        own = {
            "rows": _digest(_prompt_bytes(prompts)),
            "model": _digest(_weight_bytes(policy)),
        }
        if teachers := dict.fromkeys(teachers_of(config)):
            own["teacher"] = _digest(
                model_fingerprint(source, revision=revision).encode()
                for source, revision in teachers
            )
        if beliefs is not None:
            evidence = vars(beliefs).values()
            own["file of pass rates"] = _digest(part.tobytes() for part in evidence)
        _compare(world, own)


def _compare(world: World, own: Mapping[str, str]) -> None:
    first, *others = world.gather(own)
    for rank, other in enumerate(others, start=1):
        for name, value in other.items():
            if value != first[name]:
                raise ValueError(
                    f"Process {rank} of {world.size} has another {name} than process "
                    f"0 ({value[:12]}, not {first[name][:12]}). Use the same files "
                    "and packages on all hosts."
                )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _prompt_bytes(prompts: Iterable[Prompt]) -> Iterable[bytes]:
    for prompt in prompts:
        yield repr((prompt.index, prompt.text, prompt.row.answer)).encode()
        yield repr(prompt.row.columns).encode()
        yield array("q", prompt.token_ids).tobytes()


def _weight_bytes(policy: Policy) -> Iterable[bytes]:
    for name, weight in policy.model.named_parameters():
        yield repr((name, weight.shape)).encode()
        rows = weight.detach()[:NUM_ROWS].to(torch.bfloat16)
        yield rows.view(torch.int16).cpu().numpy().tobytes()


def prepare(
    config: RunConfig,
    paths: RunPaths,
    log: EventLog,
    *,
    world: World = ALONE,
    scorer: Scorer = HERE,
) -> tuple[Run, RunState]:
    """Load model and data, as new or as a checkpoint left them.

    Raises:
        ValueError: whatever of the configuration turns out not to be there, or not to
            fit, in any of its phases.
    """
    for phase in config.phase_configs:
        for complaint in complaints_of_many(phase.config, num_processes=world.size):
            raise ValueError(complaint)
    check_consistent_setup(world, config)
    require_packages(config)
    if paths.resume_from is None:
        check_source(config.model.path, revision=config.model.revision)
        check_decoder(config)
    set_up_torch(config)
    rows = read_rows(paths.config.parent / config.data.rows)
    train_rows, eval_rows = split_rows(
        rows, num_eval_rows=config.data.num_eval_rows, seed=config.seed
    )
    for phase in config.phase_configs:
        data_order(phase, num_rows=len(train_rows))
        for recipe in phase.config.reward.recipes:
            check_rules(recipe)
    # as many as fit in each process: their GPUs may have unlike memory
    num_shards = max(world.gather(check_memory(config, world)))
    policy = restore_policy(config.model, paths.resume_from)
    policy.fix_longest(config.longest_sequence)
    for phase in config.phase_configs:
        if phase.config.distils and phase.config.reference.model is not None:
            check_teacher(phase.config, policy)
    prefetch, slowed = Prefetch(policy.device), list[Slowed]()
    resumed = paths.resume_from
    policy, engine = _spread(
        policy,
        world,
        config,
        num_shards=num_shards,
        on_slowed=slowed.append,
        at_rest=prefetch.at_rest,
        began_with=saved_controllers(resumed).get("engine") if resumed else None,
    )
    check_environment(policy.tokenizer, config, rows[0], eos_ids=policy.eos_ids)
    renderer = make_renderer(
        policy.tokenizer,
        config.data,
        config.environment,
        seed=config.seed,
        num_embeddings=policy.num_embeddings,
    )
    prompts = Prompts(
        train=[renderer.render(row) for row in train_rows],
        held_out=[renderer.render(row) for row in eval_rows],
        eval_files=_eval_files(config, renderer, folder=paths.config.parent),
    )
    beliefs = _beliefs_of(config, paths, prompts)
    check_consistent_content(
        world, policy=policy.whole, prompts=prompts, config=config, beliefs=beliefs
    )
    # What a later phase could not begin with is refused now, not at night.
    for phase in config.phase_configs:
        if phase.config.rollout.source == "dataset":
            DatasetSource(policy, phase.config, prompts.train)
        if phase.config.lacks_teacher:
            raise ValueError(
                "advantage.weight = 0 learns from a teacher alone, but the reference "
                "is the run's own start. Set reference.model, or raise the weight."
            )
        check_context(
            train_rows, renderer, phase.config, num_positions=policy.num_positions
        )
        if phase.reference_kind == "server":
            reference_server(phase.config)
    journal = Journal(log, policy.tokenizer)
    run = Run(
        world=world,
        policy=policy,
        engine=engine,
        scorer=scorer,
        prefetch=prefetch,
        renderer=renderer,
        prompts=prompts,
        paths=paths,
        log=log,
        journal=journal,
        slowed=slowed,
    )
    budget = MemoryBudget(
        config.optim.micro_batch_tokens,
        on_halved=partial(warn_of_memory, journal),
        world=world,
        shared=policy if isinstance(policy, ShardedPolicy) else None,
    )
    state = RunState(
        config=config,
        budget=budget,
        done_steps=paths.done_steps,
        newest_checkpoint=paths.resume_from,
        beliefs=beliefs,
    )
    return run, state


def _beliefs_of(config: RunConfig, paths: RunPaths, prompts: Prompts) -> Beliefs | None:
    """Return what a curriculum begins with, or had come to believe; None without one.

    Raises:
        ValueError: the file of pass rates cannot be read.
    """
    if not config.has_curriculum:
        return None
    if paths.resume_from is not None:
        digest = prompts.digest
        if saved := saved_beliefs(paths.resume_from, prompts_digest=digest):
            return saved
    beliefs = Beliefs.about(prompt.index for prompt in prompts.train)
    if config.curriculum.start_from is not None:
        folder = paths.config.parent
        read_pass_rates(folder / config.curriculum.start_from, beliefs)
    return beliefs


def check_memory(config: RunConfig, world: World = ALONE) -> int:
    """Refuse a run whose weights and optimizer alone exceed a GPU, before loading.

    Returns:
        The processes that share what is trained and the reference: those of a node
        where each node can hold them, or all. All where that is not known.

    Raises:
        ValueError: with what it needs and what there is, in GiB.
    """
    num_each = world.size // world.nodes
    # torchrun's numbers, which configurations of a machine may not name
    started = {"num_nodes": world.nodes, "num_processes": num_each}
    where = {"where": "ray"} if world.nodes > 1 else {}
    distributed = config.distributed.model_copy(update=where | started)
    config = config.model_copy(update={"distributed": distributed})
    memory = memory_of(pick_device(config.model))
    if memory is None:
        return num_each
    found = estimate_on(memory, config)
    if found is None:
        return world.size
    total = memory.total_bytes()
    # a parked teacher is there while it is asked
    needed = found.always + (found.measuring if found.parks_teacher else 0)
    if needed > total:
        raise ValueError(
            f"The model, its optimizer and references need {needed / 2**30:.1f} "
            f"GiB on each GPU, which has {total / 2**30:.1f} GiB. Use LoRA "
            "(model.lora_rank), more GPUs or a smaller model."
        )
    return found.num_shards


def _spread(
    policy: Policy,
    world: World,
    config: RunConfig,
    *,
    num_shards: int,
    on_slowed: OnSlowed,
    at_rest: threading.Event,
    began_with: str | None,
) -> tuple[Policy, RolloutEngine]:
    """Return the policy as the world's processes train it together, and what samples
    it.
    """
    if world.size > 1:
        policy = ShardedPolicy(policy, world, num_shards=num_shards)
        if config.rollout.engine == "vllm_server":
            connect = partial(ask_servers, config, on_slowed=on_slowed)
            return policy, SharedEngine(policy, world.beside, connect=connect)
    return policy, make_engine(
        config, policy, on_slowed=on_slowed, at_rest=at_rest, began_with=began_with
    )


def _eval_files(
    config: RunConfig, renderer: PromptRenderer, *, folder: Path
) -> dict[str, list[Prompt]]:
    """Return the prompts of each file that any phase is evaluated on."""
    names = {
        name
        for phase in config.phase_configs
        for name in phase.config.evaluation.sets.values()
    }
    prompts = {}
    for name in sorted(names):
        rows = read_rows(folder / name, setting="evaluation.sets")
        try:
            prompts[name] = [renderer.render(row) for row in rows]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return prompts


def set_up_torch(config: RunConfig) -> None:
    if config.distributed.num_threads is not None:
        torch.set_num_threads(config.distributed.num_threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # it warns of a kernel that it would download
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    seed_torch(config.seed)


def announce(run: Run, state: RunState) -> None:
    """Tell what the run begins or goes on with."""
    facts = {
        "config": state.config.model_dump(mode="json"),
        "num_steps": state.config.optim.num_steps,
        "num_parameters": run.policy.num_parameters,
        "num_train_rows": len(run.prompts.train),
        "num_eval_rows": len(run.prompts.held_out),
        "device": device_name(run.policy.device, run.world),
        "engine": engine_name(run.engine),
        "versions": {
            "cohort": VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **_sandbox(state.config),
        },
    }
    log, paths, step = run.log, run.paths, state.done_steps
    if paths.resume_from is None:
        log.add(RunStarted, step=0, **facts)
    else:
        log.add(RunResumed, step=step, checkpoint=paths.resume_from.name, **facts)
    print_line(
        f"{facts['num_parameters']:,} parameters on {facts['device']}, "
        f"{facts['num_train_rows']} prompts, from step {step}"
    )
    if paths.passed_over:
        where = paths.resume_from.name if paths.resume_from else "the start"
        reasons = "; ".join(reason.rstrip(".") for reason in paths.passed_over)
        message = (
            f"Skipped damaged checkpoints: {reasons}. The run resumes from {where}."
        )
        log.add(Warned, step=step, code="checkpoint_damaged", message=message)
        print_line(message)
    run.journal.step = step
    row = run.prompts.train[0].row
    if paths.resume_from is None and drops_thinking(
        run.policy.tokenizer, state.config, row
    ):
        run.journal.warn(
            "drops_thinking",
            "The chat template leaves out the thoughts of earlier turns, which an "
            "episode keeps, so the model may never have been trained to see them.",
        )
    warn_of_sampling(run)  # of an engine that did not start
    log.flush()


def _sandbox(config: RunConfig) -> dict[str, str]:
    """Return the level that reward code runs at, where a rule runs code."""
    return {"sandbox": f"level {find_sandbox().level}"} if config.runs_code else {}


def device_name(device: torch.device, world: World = ALONE) -> str:
    """Name what a run computes on, as its log and its probe tell it."""
    count = f"{world.size} × " if world.size > 1 else ""
    if device.type == "cuda":
        return count + torch.cuda.get_device_name(device)
    return f"{count}cpu ({torch.get_num_threads()} threads)"
