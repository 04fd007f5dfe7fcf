"""The step loop's body: requests in, one step at a time, tokens out. Synchronous and single-threaded."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.errors import ConfigError, RequestError
from engine.kv_cache import KVCache
from engine.model_runner import ModelRunner
from engine.models.decoder import DecoderShape
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Schedule, Scheduler
from engine.step_output import EngineStats, RequestOutput, RequestTiming, StepOutput, StepRow
from engine.weights import decoder_shape, eos_token_ids, load_config, load_decoder, resolve_model

_CACHE_BYTES = 2 << 30
_CACHE_TOKENS_PER_SEQ = 512


class LLMEngine:
    """An engine with its model loaded; ``config`` has every default resolved.

    Raises:
        ConfigError: the model is missing or not supported.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.path = resolve_model(config.model)
        model_config = load_config(self.path)
        shape = decoder_shape(model_config)
        device = _device(config.device)
        dtype = _dtype(config.dtype, model_config, device)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = _resolve(config, shape, dtype, device)
        self.vocab_size = shape.vocab_size
        num_blocks, block_size, max_length = self.num_kv_blocks, config.block_size, self.max_model_len
        eos = eos_token_ids(self.path, model_config)
        decoder = load_decoder(self.path, model_config, dtype, device, max_length)
        cache = KVCache(shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim, dtype, device)
        self._eos = eos
        self._pool = BlockPool(num_blocks)
        self._scheduler = Scheduler(self.config, self._pool)
        self._runner = ModelRunner(decoder, cache, block_size, device, eos)
        self._requests: dict[str, Request] = {}
        self._unseeded = torch.Generator().manual_seed(config.seed)
        self._device = device
        self._num_preemptions = 0

    @property
    def num_kv_blocks(self) -> int:
        assert self.config.num_kv_blocks is not None
        return self.config.num_kv_blocks

    @property
    def max_model_len(self) -> int:
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    def add_request(self, request_id: str, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """Queue a request.

        Raises:
            RequestError: it could never run; nothing was queued.
        """
        self._check(request_id, prompt_token_ids, params)
        request = Request(request_id, list(prompt_token_ids), len(prompt_token_ids), params, time.monotonic_ns())
        if not params.is_greedy:
            request.generator = self._generator(params.seed)
        self._requests[request_id] = request
        self._scheduler.add(request)

    def abort(self, request_id: str) -> RequestTiming | None:
        """End a request in whatever state it is; its blocks are free when this returns. None: it was not alive."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        self._scheduler.finish(request)
        return _timing(request, time.monotonic_ns())

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def step(self) -> StepOutput:
        """Schedule, run the model, and hand out what is new."""
        start_ns = time.monotonic_ns()
        schedule = self._scheduler.schedule()
        row = self._row(start_ns, schedule)
        for chunk in schedule.chunks:
            chunk.request.first_scheduled_ns = chunk.request.first_scheduled_ns or start_ns
        sampled = self._runner.run(schedule.chunks) if schedule.chunks else []
        end_ns = time.monotonic_ns()
        for chunk in schedule.chunks:
            chunk.request.num_computed_tokens += chunk.num_tokens
        outputs = [self._advance(request, token, end_ns) for request, token in sampled]
        if not self._requests:
            self.check_integrity()
        return StepOutput(outputs, replace(row, duration_ns=end_ns - start_ns))

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            len(scheduler.running), len(scheduler.waiting), self._pool.num_free, self._pool.num_blocks,
            self._num_preemptions,
        )  # fmt: skip

    def check_integrity(self) -> None:
        """Blocks are conserved, and all of them free when no request is alive."""
        self._pool.check()
        held = sum(len(request.block_table) for request in self._requests.values())
        assert held + self._pool.num_free == self._pool.num_blocks, "blocks are held by nobody"

    def _advance(self, request: Request, token: int | None, now_ns: int) -> RequestOutput:
        """Append a sampled token and end the request where it ends."""
        if token is None:
            return self._finish(request, [], "error", now_ns)
        request.token_ids.append(token)
        request.first_token_ns = request.first_token_ns or now_ns
        params = request.params
        is_eos = token in self._eos and not params.ignore_eos
        if is_eos or token in params.stop_token_ids:
            return self._finish(request, [token], "stop", now_ns)
        if request.num_output_tokens >= params.max_tokens or request.num_tokens >= self.max_model_len:
            return self._finish(request, [token], "length", now_ns)
        return RequestOutput(request.request_id, [token])

    def _finish(self, request: Request, tokens: list[int], reason: str, now_ns: int) -> RequestOutput:
        del self._requests[request.request_id]
        self._scheduler.finish(request)
        return RequestOutput(request.request_id, tokens, reason, _timing(request, now_ns))

    def _row(self, start_ns: int, schedule: Schedule) -> StepRow:
        """The timeline's row; a chunk is prefill while it computes tokens of the prompt."""
        prefill = sum(
            c.num_tokens for c in schedule.chunks if c.request.num_computed_tokens < c.request.num_prompt_tokens
        )
        total = sum(chunk.num_tokens for chunk in schedule.chunks)
        self._num_preemptions += schedule.num_preempted
        stats = self.stats()
        return StepRow(
            start_ns, 0, prefill, total - prefill, stats.num_running, stats.num_waiting, stats.num_free_blocks,
            schedule.num_preempted,
        )  # fmt: skip

    def _check(self, request_id: str, prompt: list[int], params: SamplingParams) -> None:
        if request_id in self._requests:
            raise RequestError(f"request id {request_id!r} is in use; ids of live requests must differ")
        if not prompt:
            raise RequestError("the prompt is empty; it must hold at least one token", "prompt")
        if len(prompt) >= self.max_model_len:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; with at least one to generate, at most "
                f"{self.max_model_len - 1} fit the context of {self.max_model_len}", "prompt",
            )  # fmt: skip
        for ids, param in ((prompt, "prompt"), (params.stop_token_ids, "stop_token_ids")):
            if any(not 0 <= token < self.vocab_size for token in ids):
                raise RequestError(f"{param} has a token id outside the vocabulary, 0 to {self.vocab_size - 1}", param)

    def _generator(self, seed: int | None) -> torch.Generator:
        if seed is None:
            seed = int(torch.randint(2**62, (), generator=self._unseeded))
        return torch.Generator(self._device).manual_seed(seed % 2**63)


def _timing(request: Request, now_ns: int) -> RequestTiming:
    return RequestTiming(
        request.request_id, request.arrival_ns, request.first_scheduled_ns, request.first_token_ns, now_ns,
        request.num_preemptions, request.num_prompt_tokens, request.num_output_tokens,
    )  # fmt: skip


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def _dtype(name: str, model_config: object, device: torch.device) -> torch.dtype:
    if name != "auto":
        return getattr(torch, name)
    native = getattr(model_config, "dtype", None) or torch.float32
    if device.type == "cpu" and not (native == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return torch.float32
    return native


def _resolve(config: EngineConfig, shape: DecoderShape, dtype: torch.dtype, device: torch.device) -> EngineConfig:
    """Fill in what was left open. A context that the KV cache cannot hold is cut to it, so every request can run."""
    block_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * config.block_size * dtype.itemsize
    wanted = config.max_num_seqs * _CACHE_TOKENS_PER_SEQ // config.block_size
    if (config.max_model_len or 0) > shape.max_position:
        raise ConfigError(f"max_model_len is {config.max_model_len}; this model goes to {shape.max_position}")
    longest = -(-(config.max_model_len or 1) // config.block_size)
    num_blocks = config.num_kv_blocks or max(longest, min(wanted, _CACHE_BYTES // block_bytes))
    return replace(
        config,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        threads=torch.get_num_threads(),
        num_kv_blocks=num_blocks,
        max_model_len=min(config.max_model_len or shape.max_position, num_blocks * config.block_size),
    )
