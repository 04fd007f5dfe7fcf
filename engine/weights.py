"""From a model folder or hub id to a decoder on its device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from engine.errors import ConfigError
from engine.models.decoder import Decoder, DecoderShape, rope_tables

SUPPORTED = ("LlamaForCausalLM",)
#: Those whose frequencies do not depend on how long a sequence is.
_ROPE_TYPES = ("linear", "llama3")


def resolve_model(model: str) -> Path:
    """The folder of a model: "demo", a local folder, or a hub id, which is fetched.

    Raises:
        ConfigError: there is no such folder, it holds no model, or the hub does not give it.
    """
    if model == "demo":
        from engine.demo_model import ensure_demo_model

        return ensure_demo_model()
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"model folder {model!r} has no config.json; give a folder in Hugging Face layout")
        return path
    if looks_like_path(model):
        raise ConfigError(f"model folder {model!r} does not exist; give an existing folder, a hub id or 'demo'")
    return _fetch(model)


def looks_like_path(model: str) -> bool:
    """A hub id is ``name`` or ``owner/name``; anything else can only be meant as a folder."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def _fetch(model: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*"]))
    except Exception as error:
        raise ConfigError(f"model {model!r} is no local folder, and the hub did not give it: {error}") from error


def load_config(path: Path) -> Any:
    """The checkpoint's config through transformers, never running code from the folder.

    Raises:
        ConfigError: the architecture is not supported.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(
            f"{path / 'config.json'} is no config of a known model: {str(error).splitlines()[0]}"
        ) from error
    names = config.architectures or ["unnamed"]
    if names[0] not in SUPPORTED:
        raise ConfigError(f"architecture {names[0]} of {path} is not supported; supported: {', '.join(SUPPORTED)}")
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        raise ConfigError(f"{path}: attention_bias and mlp_bias are not supported; use a model without them")
    return config


def eos_token_ids(path: Path, config: Any) -> frozenset[int]:
    """Tokens that end an answer: the generation config's where there is one, else the model config's."""
    generation = path / "generation_config.json"
    stated = json.loads(generation.read_text()).get("eos_token_id") if generation.is_file() else None
    eos = config.eos_token_id if stated is None else stated
    if eos is None:
        return frozenset()
    return frozenset(eos if isinstance(eos, list) else [eos])


def load_decoder(path: Path, config: Any, dtype: torch.dtype, device: torch.device, max_length: int) -> Decoder:
    """Build the decoder, its weights read tensor by tensor from memory-mapped files."""
    shape = decoder_shape(config)
    cos, sin = rope_tables(*_rope_frequencies(config, shape.head_dim), max_length)
    return Decoder(shape, _weight_reader(path, dtype, device), (cos.to(device), sin.to(device)))


def _rope_frequencies(config: Any, head_dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, shape (head_dim / 2,), and the factor on cosines and sines."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = config.rope_parameters.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0
    if kind not in _ROPE_TYPES:
        raise ConfigError(f"rope type {kind!r} is not supported; supported: default, {', '.join(_ROPE_TYPES)}")
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies, float(factor)


def decoder_shape(config: Any) -> DecoderShape:
    return DecoderShape(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        tied_embeddings=bool(config.tie_word_embeddings),
    )


def _weight_reader(path: Path, dtype: torch.dtype, device: torch.device) -> Callable[[str], torch.Tensor]:
    files = _weight_files(path)
    handles: dict[Path, Any] = {}

    def get(name: str) -> torch.Tensor:
        if name not in files:
            raise ConfigError(f"{path}: weight {name} is missing")
        file = files[name]
        if file not in handles:
            handles[file] = safe_open(file, framework="pt")
        return handles[file].get_tensor(name).to(device=device, dtype=dtype)

    return get


def _weight_files(path: Path) -> dict[str, Path]:
    """Which safetensors file holds which weight."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return {name: path / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    single = path / "model.safetensors"
    if not single.is_file():
        raise ConfigError(f"{path} has no model.safetensors (nor an index of shards); convert the weights first")
    with safe_open(single, framework="pt") as handle:
        return dict.fromkeys(handle.keys(), single)
