"""Rollout engines that ask servers: of one process, and of several that share them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from trainer.config import RunConfig
from trainer.model.loading import in_checkpoint_form, model_fingerprint
from trainer.model.policy import Policy
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import World
from trainer.rollout.client import Forgotten, RolloutClient
from trainer.rollout.engine import (
    CheckSchedule,
    OnGroup,
    OnSlowed,
    Request,
    Sampled,
    SamplingParams,
    Slowed,
    a_few,
    as_groups,
    describe_gap,
    ignore,
    logprob_gap,
    max_logprob_gap,
    refuse_gap,
    seeded_prompts,
)
from trainer.rollout.vllm import why_not_rotated
from trainer.rollout.wire import pack_weights
from trainer.serving.client import PATIENCE_SECONDS, in_parallel, read_token
from trainer.types import Rollout

# In the middle of a question a server may be started again so often.
_MAX_JOINS = 3


class VllmServerEngine:
    """Samples on one server or several, from the weights that all were sent last.

    Prompts are dealt out in turn, each with all of its completions. A completion
    follows from its seed, wherever it is sampled, and comes back in its request's
    place. Waits for a server that is away. One that was started again has lost the
    weights; it is sent them before it samples, while the others go on.

    Raises:
        ValueError: from anything: a server stayed away, or refused.
    """

    def __init__(
        self,
        policy: Policy,
        urls: Sequence[str],
        *,
        token: str,
        fingerprint: str,
        patience_seconds: float = PATIENCE_SECONDS,
        on_slowed: OnSlowed | None = None,
    ) -> None:
        """`on_slowed`: told of log-probs that are off; None: they are not compared."""
        self._policy = policy
        self._on_slowed = on_slowed
        self._schedule = CheckSchedule()
        self._servers = [
            RolloutClient(
                url,
                token=token,
                fingerprint=fingerprint,
                patience_seconds=patience_seconds,
            )
            for url in urls
        ]
        self._joining = threading.Lock()
        try:
            self._join(self._servers)
        except BaseException:
            self.close()  # those that were held already
            raise

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._policy.tokenizer

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        """Answer once, with all completions; `on_group` isn't called."""
        if self._on_slowed is not None and self._schedule.begin(requests):
            self._check(*a_few(requests, params), self._on_slowed)
        eos_ids, count = self._policy.eos_ids, len(self._servers)
        shares = [requests[first::count] for first in range(count)]
        found = in_parallel(
            [
                partial(self._sample_share, server, share, params)
                for server, share in zip(self._servers, shares, strict=True)
            ]
        )
        groups: list[tuple[Rollout, ...]] = [()] * len(requests)
        for first, (share, sampled) in enumerate(zip(shares, found, strict=True)):
            groups[first::count] = as_groups(
                share, sampled, tokenizer=self.tokenizer, eos_ids=eos_ids
            )
        return groups

    def sync_weights(self) -> None:
        self._join(self._send_policy(self._servers))
        self._schedule.after_sync()

    def rest(self) -> None:
        """Do nothing: its memory is the servers'."""

    def close(self) -> None:
        """Let the servers be leased by another run."""
        for server in self._servers:
            server.close()

    def _check(
        self, requests: list[Request], params: SamplingParams, on_slowed: OnSlowed
    ) -> None:
        """Compare log-probs with those of the policy's pass.

        Raises:
            ValueError: they are too far off to be trained on.
        """
        gap = logprob_gap(
            self._policy,
            requests,
            self.sample(requests, params),
            temperature=params.temperature,
        )
        refuse_gap(
            gap,
            sampler="rollout servers",
            remedy="Restart the servers with the run's model and dtype.",
        )
        if gap > max_logprob_gap(self._policy):
            on_slowed(
                Slowed(
                    code="engine_fallback",
                    reason=describe_gap(gap),
                    failed="The check of rollout servers",
                    way="these servers",
                )
            )

    def _sample_share(
        self, server: RolloutClient, share: Sequence[Request], params: SamplingParams
    ) -> list[Sampled]:
        if not share:
            return []
        prompts, eos_ids = seeded_prompts(share), self._policy.eos_ids
        for _ in range(_MAX_JOINS):
            try:
                return server.sample(prompts, params, eos_ids=eos_ids)
            except Forgotten:
                with self._joining:  # others may have lost it too
                    self._join([server])
        raise _keeps_restarting(server)

    def _join(self, servers: Sequence[RolloutClient]) -> None:
        """Hold these and send them the policy; again those started again meanwhile."""
        for _ in range(_MAX_JOINS):
            if not servers:
                return
            in_parallel([server.hold for server in servers])
            for server in servers:
                if reason := why_not_rotated(self._policy, server.max_length):
                    raise ValueError(
                        f"The rollout server at {server.url} computes other log-probs: "
                        f'{reason}. Set rollout.engine to "transformers" or, for '
                        f"longrope, start it with --max-length {self._policy.longest}."
                    )
            servers = self._send_all(servers)
        if servers:
            raise _keeps_restarting(servers[0])

    def _send_all(self, servers: Sequence[RolloutClient]) -> list[RolloutClient]:
        """Send what servers need that have nothing; those that lost the run's state."""
        adapters = self._policy.adapter_weights()
        lost: list[RolloutClient] = []
        if adapters is not None:
            layers, rank = adapters.layers, adapters.rank
            lost += _reach(servers, lambda s: s.check_adapters(layers, rank=rank))
            lost += self._send(
                [s for s in servers if s.swaps and s not in lost],
                self._policy.base_weights(),
            )
        return lost + self._send_policy([s for s in servers if s not in lost])

    def _send_policy(self, servers: Sequence[RolloutClient]) -> list[RolloutClient]:
        """Have them sample the policy of now; those that lost the run's state."""
        lost: list[RolloutClient] = []
        swapping = [server for server in servers if server.swaps]
        whole = [server for server in servers if not server.swaps]
        if swapping:
            adapters = self._policy.adapter_weights()
            assert adapters is not None
            lost += self._send(
                swapping, adapters.tensors, rank=adapters.rank, alpha=adapters.alpha
            )
        if whole:
            weights = in_checkpoint_form(self._policy.model, self._policy.weights())
            lost += self._send(whole, weights)
        return lost

    def _send(
        self,
        servers: Sequence[RolloutClient],
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        rank: int = 0,
        alpha: float = 0.0,
    ) -> list[RolloutClient]:
        """Send each part to all before the next; those that lost the run's state.

        A part is packed once, and is all that is in memory of what is sent.
        """
        names: list[str] = []

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                names.append(name)
                yield name, weight

        left, lost = list(servers), list[RolloutClient]()

        def tell(act: Callable[[RolloutClient], None]) -> None:
            lost.extend(_reach(left, act))
            left[:] = [server for server in left if server not in lost]

        if left:
            for part in pack_weights(named()):
                tell(partial(RolloutClient.add_weights, part=part))
            tell(lambda server: server.load(names, rank=rank, alpha=alpha))
        return lost


def _reach(
    servers: Sequence[RolloutClient], act: Callable[[RolloutClient], None]
) -> list[RolloutClient]:
    """Do something with each at the same time; those that lost the run's state."""

    def is_lost(server: RolloutClient) -> bool:
        try:
            act(server)
        except Forgotten:
            return True
        return False

    lost = in_parallel([partial(is_lost, server) for server in servers])
    return [server for server, gone in zip(servers, lost, strict=True) if gone]


def _keeps_restarting(server: RolloutClient) -> ValueError:
    return ValueError(
        f"The rollout server at {server.url} lost this run {_MAX_JOINS} times during "
        "one request. Check the server's log, and resume the run."
    )


def rollout_servers(
    config: RunConfig,
    policy: Policy,
    engine: type[VllmServerEngine] = VllmServerEngine,
    *,
    on_slowed: OnSlowed,
) -> VllmServerEngine:
    """Return the servers that `config.rollout` names, with the policy's weights.

    Raises:
        ValueError: one is not there, holds another model, or another run holds it.
    """
    assert config.rollout.token_file is not None
    return engine(
        policy,
        config.rollout.urls,
        token=read_token(Path(config.rollout.token_file)),
        fingerprint=model_fingerprint(
            config.model.path, revision=config.model.revision
        ),
        on_slowed=on_slowed,
    )


class SharedEngine:
    """A server samples for one client, and fills its batch best if it is asked at once.

    All processes must ask together, each for what it needs, be it nothing.
    """

    def __init__(
        self,
        policy: ShardedPolicy,
        world: World,
        *,
        connect: Callable[[Policy], VllmServerEngine],
    ) -> None:
        """Args: policy: what is sampled from. Its whole copy stands still between two
        calls of `sync_weights`, so it is the snapshot of one that trains meanwhile.
        world: by which the processes ask. No other thread may ask by it while this
        engine samples: the answers would cross. connect: called in the first process,
        with the whole copy.

        Raises:
            ValueError: in every process, where `connect` raises it in the first.
        """
        self._policy = policy
        self._world = world
        self._engine: VllmServerEngine | None = None  # of the first process

        def take() -> None:
            self._engine = connect(policy.whole)

        world.from_main(take)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._policy.tokenizer

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        """Answer once, with all processes' completions; `on_group` isn't called."""
        asked = self._world.gather(list(requests))
        everyones = [request for own in asked for request in own]

        def ask() -> list[tuple[Rollout, ...]]:
            assert self._engine is not None
            return self._engine.sample(everyones, params)

        found = self._world.from_main(ask)
        first = sum(len(own) for own in asked[: self._world.rank])
        return found[first : first + len(requests)]

    def sync_weights(self) -> None:
        self._policy.gather_whole()

        def send() -> None:
            assert self._engine is not None
            self._engine.sync_weights()

        self._world.from_main(send)

    def rest(self) -> None:
        if self._engine is not None:
            self._engine.rest()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
