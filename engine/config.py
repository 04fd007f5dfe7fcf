"""The engine's settings: checked where they are made, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    ``dtype="auto"`` takes the checkpoint's type where the hardware computes in it, else float32.
    ``num_kv_blocks=None`` sizes the KV cache for ``max_num_seqs`` sequences of 512 tokens, within 2 GiB.

    Raises:
        ConfigError: a value is out of its bounds.
    """

    model: str = "demo"
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_kv_blocks: int | None = None
    max_model_len: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            self._require_positive(name)
        for name in ("threads", "num_kv_blocks", "max_model_len"):
            if getattr(self, name) is not None:
                self._require_positive(name)

    def _require_positive(self, name: str) -> None:
        value = getattr(self, name)
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
