"""Rollout engines that ask servers: of one process, and of several that share them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainer.model.loading import in_checkpoint_form
from trainer.model.policy import Policy
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import World
from trainer.rollout.engine import (
    Collected,
    OnGroup,
    Request,
    Sampled,
    SamplingParams,
    SeededPrompt,
    as_completion,
    ignore,
)
from trainer.rollout.vllm import VllmProcess, why_not_rotated
from trainer.rollout.wire import (
    HOLD,
    HOLD_HEADER,
    LOAD,
    MODEL,
    PLACES,
    SAMPLE,
    WEIGHTS,
    Adapted,
    Forgotten,
    Order,
    Question,
    answer_bytes,
    pack_question,
    pack_weights,
    unpack_answer,
)
from trainer.serving.client import (
    PATIENCE_SECONDS,
    REQUEST_SECONDS,
    SLACK_BYTES,
    Call,
    Connection,
    Kind,
    OpenAnswer,
    Refused,
    hold_server,
    in_parallel,
    release_server,
)
from trainer.types import Rollout

_KIND = Kind(
    name="rollout server",
    part="rollout",
    command="python -m trainer rollout-server",
    port=8700,
)
# A step of long completions takes a server hours, in which it says nothing. What was
# asked of it before, if by a run that is gone, comes first.
_TURN_SECONDS = 6 * 3600.0


class RolloutClient:
    """Waits for a server that is away, in every question.

    Raises:
        ValueError: from any question: the server stayed away, or refused.
        Forgotten: from any but `hold`.
    """

    kind = "rollout servers"
    swaps = False  # it takes adapters alone

    def __init__(
        self,
        url: str,
        *,
        token: str,
        fingerprint: str,
        num_gpus: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Args: num_gpus: of a server that does not tell."""
        self._fingerprint = fingerprint
        self._num_gpus = num_gpus
        self._connection = Connection(
            url, _KIND, token=token, patience_seconds=patience_seconds
        )
        self._held: OpenAnswer | None = None  # while it is open, the server is ours
        self._word = ""
        self._version = -1  # of the weights that it was sent last

    @property
    def name(self) -> str:
        return f"rollout server at {self._connection.url}"

    def hold(self) -> None:
        """Have it sample for this run and for no other."""
        status = self._check_model()
        # a server leased to this run still, by an older connection, takes this one
        headers = {HOLD_HEADER: self._word}
        try:
            held = self._connection.open(
                Call(method="POST", path=HOLD, headers=headers)
            )
        except Refused as refusal:
            if refusal.status != HTTPStatus.LOCKED:
                raise
            raise ValueError(
                f"The {self.name} is used by another run. Wait until "
                "it ends, or start a server for this run."
            ) from None
        try:
            word = self._connection.read_field(held.line, "hold", str)
        except ValueError:
            held.close()
            raise
        self._end_lease()
        self._held, self._word = held, word
        hold_server(self._connection, status, num_gpus=self._num_gpus)

    def close(self) -> None:
        """Let it be leased by another run."""
        self._end_lease()
        release_server(self._connection.url)

    def _end_lease(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def check_adapters(self, layers: Iterable[str], *, rank: int) -> None:
        """Ask whether it takes such adapters by themselves."""
        adapted = Adapted(layers=tuple(sorted(layers)), rank=rank)
        reply = self._ask(PLACES, adapted.pack())
        self.swaps = self._connection.read_field(reply, "can_take", bool)

    def parts(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[bytes]:
        return pack_weights(weights)

    def add_weights(self, part: bytes, *, is_adapters: bool) -> None:
        """Send some of the weights, or adapters, that it is to sample with."""
        self._ask(WEIGHTS, part, seconds=REQUEST_SECONDS)

    def load(self, names: Sequence[str], *, rank: int, alpha: float) -> None:
        """Have it sample with what it was sent; a rank of 0: whole weights."""
        order = Order(names=tuple(names), rank=rank, alpha=alpha)
        reply = self._ask(LOAD, order.pack())
        self._version = self._connection.read_field(reply, "version", int)

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: tuple[int, ...],
        on_ended: Callable[[int, Sampled], None],
    ) -> None:
        """Tell of all completions once the last has ended, by their numbers."""
        question = Question(
            prompts=prompts, params=params, eos_ids=eos_ids, version=self._version
        )
        limit = answer_bytes(question) + SLACK_BYTES
        body = self._ask(SAMPLE, pack_question(question), limit=limit)
        for ended in enumerate(unpack_answer(body, question)):
            on_ended(*ended)

    def rest(self) -> None:
        """Do nothing: its memory is the server's."""

    def _ask(
        self,
        path: str,
        body: bytes,
        *,
        limit: int = SLACK_BYTES,
        seconds: float = _TURN_SECONDS,
    ) -> bytes:
        try:
            return self._connection.ask(
                Call(
                    method="POST",
                    path=path,
                    body=body,
                    headers={HOLD_HEADER: self._word},
                    limit=limit,
                    seconds=seconds,
                )
            )
        except Refused as refusal:
            if refusal.status in (HTTPStatus.LOCKED, HTTPStatus.CONFLICT):
                raise Forgotten from None
            raise

    def _check_model(self) -> bytes:
        """Return its status; refuse one whose model is not what the run starts from."""
        reply = self._connection.ask(Call(method="GET", path=MODEL))
        read_field = self._connection.read_field
        self.max_length = read_field(reply, "max_length", int)  # of no reference's
        if read_field(reply, "fingerprint", str) != self._fingerprint:
            raise ValueError(
                f"The {self.name} serves another model than this "
                "run's. Start it with --model set to the run's model.path."
            )
        return reply


# A client, of which an engine has one kind. Whatever is asked but `hold` and `close`
# raises `Forgotten` where it has lost the weights.
Server = RolloutClient | VllmProcess
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
        servers: Sequence[Server],
        *,
        before_sync: Callable[[], None] = lambda: None,
    ) -> None:
        """Args: policy: whose weights are sent. before_sync: brings it up to date."""
        self._policy = policy
        self._servers = servers
        self._before_sync = before_sync
        self._joining = threading.Lock()
        try:
            self._join(self._servers)
        except BaseException:
            self.close()  # those that were held already
            raise

    @property
    def kind(self) -> str:
        """The name that a run gives it, such as vLLM 0.32.0."""
        return self._servers[0].kind

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
        """Sample all; a rollout server answers once, with all of its groups."""
        collected = Collected(requests, on_group)
        self.collect(requests, params, collected)
        return collected.groups()

    def collect(
        self, requests: Sequence[Request], params: SamplingParams, collected: Collected
    ) -> None:
        """Take in each completion as it ends; those of several servers at the end."""
        count, eos_ids = len(self._servers), self._policy.eos_ids
        ended: dict[tuple[int, int], Sampled] = {}

        def take(owner: tuple[int, int], sampled: Sampled) -> None:
            completion = as_completion(sampled, self.tokenizer, eos_ids, params.stop)
            collected.add(owner, completion)

        def share(first: int) -> list[tuple[tuple[int, int], SeededPrompt]]:
            """Return the prompts of a server, each with its request and place there."""
            return [
                (
                    (index, place),
                    SeededPrompt(
                        token_ids=request.token_ids,
                        seed=seed,
                        max_new_tokens=request.max_new_tokens,
                    ),
                )
                for index, request in [*enumerate(requests)][first::count]
                for place, seed in enumerate(request.seeds)
            ]

        keep = take if count == 1 else ended.__setitem__
        in_parallel(
            [
                partial(self._sample_share, server, dict(share(first)), params, keep)
                for first, server in enumerate(self._servers)
            ]
        )
        for owner in sorted(ended):
            take(owner, ended[owner])

    def sync_weights(self) -> None:
        self._before_sync()
        self._join(self._send_policy(self._servers))

    def rest(self) -> None:
        for server in self._servers:
            server.rest()

    def close(self) -> None:
        """Let the servers be leased by another run."""
        for server in self._servers:
            server.close()

    def _sample_share(
        self,
        server: Server,
        prompts: dict[tuple[int, int], SeededPrompt],
        params: SamplingParams,
        keep: Callable[[tuple[int, int], Sampled], None],
    ) -> None:
        """Sample prompts, which leave as they end; a restarted server has the rest."""
        for _ in range(_MAX_JOINS):
            if not prompts:
                return
            owners = list(prompts)

            def take(number: int, sampled: Sampled, owners: Any = owners) -> None:
                del prompts[owners[number]]
                keep(owners[number], sampled)

            try:
                server.sample(
                    list(prompts.values()),
                    params,
                    eos_ids=self._policy.eos_ids,
                    on_ended=take,
                )
            except Forgotten:
                with self._joining:  # others may have lost it too
                    self._join([server])
        if prompts:
            raise _keeps_restarting(server)

    def _join(self, servers: Sequence[Server]) -> None:
        """Hold these and send them the policy; again those started again meanwhile."""
        for _ in range(_MAX_JOINS):
            if not servers:
                return
            in_parallel([server.hold for server in servers])
            for server in servers:
                if reason := why_not_rotated(self._policy, server.max_length):
                    raise ValueError(
                        f"The {server.name} computes other log-probs: "
                        f'{reason}. Set rollout.engine to "transformers" or, for '
                        f"longrope, start it with --max-length {self._policy.longest}."
                    )
            servers = self._send_all(servers)
        if servers:
            raise _keeps_restarting(servers[0])

    def _send_all(self, servers: Sequence[Server]) -> list[Server]:
        """Send what servers need that have nothing; those that lost the run's state."""
        adapters = self._policy.adapter_weights()
        lost: list[Server] = []
        if adapters is not None:
            layers, rank = adapters.layers, adapters.rank
            lost += _reach(servers, lambda s: s.check_adapters(layers, rank=rank))
            lost += self._send(
                [s for s in servers if s.swaps and s not in lost],
                self._policy.base_weights(),
            )
        return lost + self._send_policy([s for s in servers if s not in lost])

    def _send_policy(self, servers: Sequence[Server]) -> list[Server]:
        """Have them sample the policy of now; those that lost the run's state."""
        lost: list[Server] = []
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
        servers: Sequence[Server],
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        rank: int = 0,
        alpha: float = 0.0,
    ) -> list[Server]:
        """Send each part to all before the next; those that lost the run's state.

        A part is packed once, and is all that is in memory of what is sent.
        """
        names: list[str] = []

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                names.append(name)
                yield name, weight

        left, lost = list(servers), list[Server]()

        def tell(act: Callable[[Server], None]) -> None:
            lost.extend(_reach(left, act))
            left[:] = [server for server in left if server not in lost]

        if left:
            for part in left[0].parts(named()):
                tell(partial(_add, part=part, is_adapters=rank > 0))
            tell(lambda server: server.load(names, rank=rank, alpha=alpha))
        return lost


def _reach(servers: Sequence[Server], act: Callable[[Server], None]) -> list[Server]:
    """Do something with each at the same time; those that lost the run's state."""

    def is_lost(server: Server) -> bool:
        try:
            act(server)
        except Forgotten:
            return True
        return False

    lost = in_parallel([partial(is_lost, server) for server in servers])
    return [server for server, gone in zip(servers, lost, strict=True) if gone]


def _add(server: Any, part: Any, *, is_adapters: bool) -> None:
    server.add_weights(part, is_adapters=is_adapters)


def _keeps_restarting(server: Server) -> ValueError:
    return ValueError(
        f"The {server.name} lost this run {_MAX_JOINS} times during one request. Check "
        "its log, and resume the run."
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
        connect: Callable[[Policy], Any],
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
        self._engine: Any = None  # of the first process

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
        if not everyones:
            return []

        sampled_by_index: list[tuple[Rollout, ...]] = self._world.from_main(
            lambda: self._engine.sample(everyones, params)
        )
        first = sum(len(own) for own in asked[: self._world.rank])
        return sampled_by_index[first : first + len(requests)]

    def is_needed_by_any(self, *, own: bool) -> bool:
        return self._world.agree(wants=own)

    def sync_weights(self) -> None:
        self._policy.gather_whole()
        self._world.from_main(lambda: self._engine.sync_weights())

    def rest(self) -> None:
        if self._engine is not None:
            self._engine.rest()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
