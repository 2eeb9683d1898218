"""One rollout engine for all processes of a run: the first one asks for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from trainer.model.policy import Policy
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import World
from trainer.rollout.engine import OnGroup, Request, SamplingParams, ignore
from trainer.rollout.server_engine import VllmServerEngine
from trainer.types import Completion


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
        """
        Args:
            policy: what is sampled from. Its whole copy stands still between two calls
                of `sync_weights`, so it is the snapshot of one that trains meanwhile.
            world: by which the processes ask. No other thread may ask by it while this
                engine samples: the answers would cross.
            connect: called in the first process, with the whole copy.

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
    ) -> list[tuple[Completion, ...]]:
        """One answer has everybody's completions, so `on_group` is told of none."""
        asked = self._world.gather(list(requests))
        everyones = [request for own in asked for request in own]

        def ask() -> list[tuple[Completion, ...]]:
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
