"""The engine's Prometheus metrics: vLLM's names under our own prefix."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.step_output import EngineStats, RequestTiming, StepRow

_TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5, 10, 20, 40)
_TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_E2E_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)


class Metrics:
    """One engine's metrics in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._running = Gauge("tokenswarm_num_requests_running", "Requests in the running list", registry=registry)
        self._waiting = Gauge("tokenswarm_num_requests_waiting", "Requests in the queue", registry=registry)
        self._usage = Gauge("tokenswarm_kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", registry=registry)
        self._blocks = Gauge("tokenswarm_kv_blocks", "KV blocks in all", registry=registry)
        self._free = Gauge("tokenswarm_kv_blocks_free", "KV blocks that are free", registry=registry)
        self._preemptions = Counter("tokenswarm_num_preemptions", "Preemptions by recompute", registry=registry)
        self._prompt = Counter("tokenswarm_prompt_tokens", "Prompt tokens of finished requests", registry=registry)
        self._generated = Counter("tokenswarm_generation_tokens", "Tokens generated", registry=registry)
        self._steps = Counter("tokenswarm_steps", "Engine steps", registry=registry)
        self._finished = Counter(
            "tokenswarm_request_success", "Requests ended, by finish reason", ["finished_reason"], registry=registry
        )
        self._ttft = Histogram(
            "tokenswarm_time_to_first_token_seconds", "Arrival to first token", buckets=_TTFT_BUCKETS, registry=registry
        )
        self._tpot = Histogram(
            "tokenswarm_time_per_output_token_seconds", "Mean gap between tokens", buckets=_TPOT_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "tokenswarm_request_queue_time_seconds", "Arrival to first scheduled", buckets=_TTFT_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._e2e = Histogram(
            "tokenswarm_e2e_request_latency_seconds", "Arrival to last token", buckets=_E2E_BUCKETS, registry=registry
        )

    def set_stats(self, stats: EngineStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._blocks.set(stats.num_blocks)
        self._free.set(stats.num_free_blocks)
        self._usage.set(1 - stats.num_free_blocks / stats.num_blocks)

    def observe_step(self, row: StepRow, num_generated: int) -> None:
        self._steps.inc()
        self._generated.inc(num_generated)
        self._preemptions.inc(row.preemptions)

    def observe_request(self, timing: RequestTiming, finish_reason: str) -> None:
        self._finished.labels(finish_reason).inc()
        self._prompt.inc(timing.prompt_tokens)
        self._queue.observe(timing.queue_ns / 1e9)
        self._e2e.observe((timing.finished_ns - timing.arrival_ns) / 1e9)
        if timing.first_token_ns is not None:
            self._ttft.observe((timing.first_token_ns - timing.arrival_ns) / 1e9)
            if timing.completion_tokens > 1:
                decode_ns = timing.finished_ns - timing.first_token_ns
                self._tpot.observe(decode_ns / (timing.completion_tokens - 1) / 1e9)

    def render(self) -> bytes:
        return generate_latest(self.registry)
