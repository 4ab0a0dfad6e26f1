"""Continuous batching: which ids are computed in the next forward pass, and for whom.

Synchronous and single-threaded; `TorchEngine` runs it in a thread. Every `step` decodes one token
for each running turn and spends a bounded number of tokens on prefill, so that neither starves the
other. Turns are admitted in order of arrival while there is a slot for them. What a prompt has in
common with one that is in a slot is copied from there; with one that is about to be computed, it waits.

Invariants
- A turn's slot holds keys and values of `ids[:filled]`; decoding is the case where one id is left.
- Draw i of a turn uses number i of its seed, whatever else runs.
- Everything sampled is reported exactly once, and every turn reports exactly one finish reason.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentrl.engine.engine import EngineError, EngineStats, FinishReason, GenerateRequest
from agentrl.engine.forward import Forward
from agentrl.engine.kv_cache import KVCache, Work
from agentrl.engine.prefixes import PrefixIndex
from agentrl.engine.sampling import Sampler
from agentrl.engine.slots import SlotTable
from agentrl.engine.swap_cost import SwapCost, SwapMeter
from agentrl.engine.turn import Progress, ServedTurn

_PATIENCE_STEPS = 256
"""For so many steps a turn without a slot lets pass those whose sessions still hold theirs."""


class Batcher:
    def __init__(
        self,
        forward: Forward,
        cache: KVCache,
        *,
        prefill_tokens: int,
        policy_version: int,
        prefixes: PrefixIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy_version = policy_version
        self._forward = forward
        self._cache = cache
        self._prefill_tokens = prefill_tokens
        self._slots = SlotTable(cache.num_slots)
        self._prefixes = prefixes or PrefixIndex()
        self._waiting: deque[ServedTurn] = deque()
        self._running: list[ServedTurn] = []
        self._prefills: dict[str, ServedTurn] = {}
        """The one that is waiting or running for a session."""
        self._ended: list[Progress] = []
        self._is_holding = False
        self._swaps = SwapMeter(clock)
        self._sampler: Sampler | None = None
        self._sampler_turns: list[ServedTurn] = []
        self._tokens_generated = 0
        self._tokens_prefilled = 0

    # ------------------------------------------------------------------ between steps

    @property
    def has_work(self) -> bool:
        return bool(self._running or (self._waiting and not self._is_holding))

    def submit(self, request: GenerateRequest) -> None:
        """Turns of one session run one after another; a prefill gives way to anything newer."""
        if prefill := self._prefills.get(request.session_id):
            self._finish(prefill, FinishReason.ABORTED)
        stop_ids = frozenset(request.sampling.stop_ids)
        turn = ServedTurn(request=request, ids=list(request.ids), stop_ids=stop_ids)
        if turn.is_prefill:
            self._prefills[request.session_id] = turn
        if self._is_holding:
            self._swaps.waits(turn)
        self._waiting.append(turn)

    def abort(self, request_id: str) -> None:
        for turn in self._all_turns():
            if turn.request.request_id == request_id:
                self._finish(turn, FinishReason.ABORTED)

    def abort_all(self) -> int:
        turns = self._all_turns()
        for turn in turns:
            self._finish(turn, FinishReason.ABORTED)
        return len(turns)

    def release(self, session_id: str) -> None:
        if not self._slots.is_used(session_id):
            return self._slots.release(session_id)
        (turn,) = (turn for turn in self._running if turn.request.session_id == session_id)
        turn.is_released = True

    def change_weights(self, load: Callable[[], None], version: int, *, keep_cache: bool) -> None:
        """`load` writes the new ones into the model. What it raises leaves all as it was, unless it
        is an `EngineError`, after which nothing may run."""
        self._swaps.begins(self._running)
        try:
            load()
        except BaseException:
            self._swaps.kept(self._running)
            raise
        self._policy_version = version
        self._prefixes.clear()
        if keep_cache:
            for turn in self._running:
                turn.is_mixed = turn.filled > 0
            return self._swaps.kept(self._running)
        self._swaps.dropped(self._running)
        self._slots.release_resting()
        for turn in self._running:
            turn.filled, turn.is_mixed = 0, False

    def hold(self) -> None:
        """Begin no turn until `admit`; those that run go on."""
        self._is_holding = True
        self._swaps.holds(self._running, self._waiting)

    def admit(self) -> None:
        self._is_holding = False
        self._swaps.admits(self._waiting)

    def take_swap_cost(self) -> SwapCost:
        """Of the swaps since the last call."""
        return self._swaps.take()

    def take_progress(self, *, running: bool) -> list[Progress]:
        """What was not yet reported of turns that ended; of running ones too if asked."""
        taken, self._ended = self._ended, []
        if running:
            taken += [turn.report(None) for turn in self._running if turn.has_unreported]
        return taken

    def stats(self) -> EngineStats:
        return EngineStats(
            policy_version=self._policy_version,
            running=len(self._running),
            waiting=len(self._waiting),
            num_slots=self._cache.num_slots,
            cached_tokens=self._slots.resting_tokens + sum(turn.filled for turn in self._running),
            tokens_generated=self._tokens_generated,
            tokens_prefilled=self._tokens_prefilled,
        )

    # ------------------------------------------------------------------ one step

    def step(self) -> None:
        self._admit()
        decoding = [turn for turn in self._running if turn.remaining == 1]
        prefilling = self._pick_prefill()
        logits = []
        if decoding:
            logits.append(self._compute(decoding, [1] * len(decoding)))
        if prefilling:
            sizes = [size for _, size in prefilling]
            logits.append(self._compute([turn for turn, _ in prefilling], sizes))
            self._tokens_prefilled += sum(sizes)
            self._requeue([turn for turn, _ in prefilling if turn.remaining])
            self._offer([turn for turn, _ in prefilling])
        turns = [*decoding, *(turn for turn, _ in prefilling)]
        if turns:
            self._sample(turns, torch.cat(logits))

    def _admit(self) -> None:
        if self._is_holding or not (self._waiting and self._slots.has_room):
            return
        waiting_sessions = {turn.request.session_id for turn in self._waiting}
        for turn in list(self._waiting):
            session_id = turn.request.session_id
            if self._slots.is_used(session_id):
                continue
            spared = waiting_sessions if turn.waited_steps < _PATIENCE_STEPS else ()
            lease = self._slots.lease(session_id, turn.ids, spared=spared)
            if lease is None:
                turn.waited_steps += 1
                continue
            turn.slot, turn.filled = lease
            self._prefixes.cut(turn.slot, turn.filled)
            self._waiting.remove(turn)
            self._running.append(turn)

    def _pick_prefill(self) -> list[tuple[ServedTurn, int]]:
        """Turns to prefill now, and how many ids of each.

        The one that has waited longest is always served; others join while the padded block stays
        within the budget, and only where at most half of their row would be padding.
        """
        picked: list[tuple[ServedTurn, int]] = []
        width = 0
        prefilling = [turn for turn in self._running if turn.remaining > 1]
        coming = {
            name for turn in prefilling if turn.filled for name in self._missing(turn, turn.filled)
        }
        for turn in prefilling:
            if not turn.filled and self._waits_for_prefix(turn, coming):
                continue
            size = min(turn.remaining, self._prefill_tokens)
            new_width = max(width, size)
            fits = new_width * (len(picked) + 1) <= self._prefill_tokens
            if not picked or (fits and 2 * min(width, size) >= new_width):
                picked.append((turn, size))
                width = new_width
        return picked

    def _waits_for_prefix(self, turn: ServedTurn, coming: set[int]) -> bool:
        """Whether a block that this one lacks is about to be computed, by `coming`, for another.

        Otherwise it copies what there is, and the blocks that it lacks then are coming too.
        """
        if turn.names is None:
            turn.names = self._prefixes.names(turn.request.ids)
        prefix = self._prefixes.find(turn.ids, turn.names)
        missing = self._missing(turn, prefix.length if prefix else 0)
        if not coming.isdisjoint(missing):
            return True
        if prefix:
            self._cache.copy(prefix.slot, turn.slot, prefix.length)
            turn.filled = prefix.length
        coming.update(missing)
        return False

    def _missing(self, turn: ServedTurn, filled: int) -> list[int]:
        """Names of the prompt's blocks after the first `filled` ids."""
        return (turn.names or [])[self._prefixes.num_blocks(filled) :]

    def _requeue(self, unfinished: Sequence[ServedTurn]) -> None:
        """The next chunk of a long prompt waits until the other prompts had theirs."""
        for turn in unfinished:
            self._running.remove(turn)
            self._running.append(turn)

    def _offer(self, turns: Sequence[ServedTurn]) -> None:
        """Let others copy what these have of their prompts."""
        for turn in turns:
            if turn.names and not turn.is_mixed:
                names = turn.names[: self._prefixes.num_blocks(turn.filled)]
                self._prefixes.add(turn.slot, turn.request.ids[: turn.filled], names)

    def _compute(self, turns: Sequence[ServedTurn], sizes: Sequence[int]) -> Tensor:
        """Fill the slots with the next ids of each turn; the logits of the last of them."""
        block = self._cache.block(
            [
                Work(turn.slot, turn.filled, turn.ids[turn.filled : turn.filled + size])
                for turn, size in zip(turns, sizes, strict=True)
            ]
        )
        logits = self._forward(block)
        for turn, size in zip(turns, sizes, strict=True):
            turn.filled += size
        return logits.index_select(0, block.rows)

    def _sample(self, turns: Sequence[ServedTurn], logits: Tensor) -> None:
        ready = [i for i, turn in enumerate(turns) if turn.remaining == 0]
        if not ready:
            return
        if len(ready) < len(turns):
            turns = [turns[i] for i in ready]
            logits = logits[ready]
        if self._sampler is None or turns != self._sampler_turns:
            self._sampler_turns = list(turns)
            self._sampler = Sampler([turn.request.sampling for turn in turns], logits.device)
        ids, logprobs = self._sampler.draw(logits, [turn.num_sampled for turn in turns])
        if not math.isfinite(sum(logprobs)):
            raise EngineError("the model's logits are not finite; its weights are broken")
        for turn, token, logprob in zip(turns, ids, logprobs, strict=True):
            self._append(turn, token, logprob)

    def _append(self, turn: ServedTurn, token: int, logprob: float) -> None:
        if turn.is_prefill:
            return self._finish(turn, FinishReason.LENGTH)
        self._swaps.goes_on(turn)
        turn.ids.append(token)
        turn.logprobs.append(logprob)
        turn.policy_versions.append(self._policy_version)
        self._tokens_generated += 1
        if token in turn.stop_ids:
            self._finish(turn, FinishReason.STOP)
        elif turn.num_sampled == turn.request.max_new_tokens:
            self._finish(turn, FinishReason.LENGTH)

    # ------------------------------------------------------------------ turns

    def _all_turns(self) -> list[ServedTurn]:
        return [*self._waiting, *self._running]

    def _finish(self, turn: ServedTurn, reason: FinishReason) -> None:
        self._ended.append(turn.report(reason))
        session_id = turn.request.session_id
        if turn.is_prefill:
            del self._prefills[session_id]
        self._swaps.goes_on(turn)
        if turn.slot < 0:
            return self._waiting.remove(turn)
        self._running.remove(turn)
        if self._is_holding and not self._running:
            self._swaps.ran_dry()
        self._slots.rest(session_id, turn.ids[: turn.filled])
        if turn.is_released:
            self._slots.release(session_id)
