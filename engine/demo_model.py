"""A model made from a seed at first use, so that everything runs where nothing can be downloaded.

Llama-shaped, 29.4 M bfloat16 parameters, a byte-level BPE tokenizer that takes any text apart without loss. Its text
means nothing; its arithmetic is a real model's.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

#: The tokenizer learns from this Python's own library, so its version is part of the name.
_NAME = f"demo-30m-v2-py{sys.version_info.major}.{sys.version_info.minor}"
_VOCAB_SIZE = 8192
_BOS, _EOS, _PAD, _START, _END = "<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Prose of Python's own library, present wherever Python is: enough English for a tokenizer.
_ENGLISH_SOURCES = ("argparse.py", "datetime.py", "decimal.py", "difflib.py", "inspect.py", "logging/__init__.py",
                    "pathlib.py", "random.py", "statistics.py", "subprocess.py", "tarfile.py", "threading.py",
                    "turtle.py", "typing.py", "zipfile.py")  # fmt: skip
_CHINESE = (
    "推理服务的负载不是一个数字，而是一条曲线。并发较小时，吞吐量随着请求数几乎线性增长；当计算资源用满以后，"
    "新的请求只能排队，首个词元的等待时间越来越长，而每秒生成的词元不再增加。我们要找的，就是两者之间的拐点。"
    "提示词有短有长，短的问题几句话就能回答，长的文档需要先全部读完才能开始生成。预填充受限于算力，解码受限于内存带宽，"
    "连续批处理让两者在同一个步骤里共享硬件。缓存按块管理，用完的块立刻归还，任何请求都不会永远等待。"
    "测量工具必须知道自己的误差：时间取自内核，失败的请求也要留下记录，结论要带上置信区间。"
    "请用中文写一段文字，说明今天的天气、城市的交通、公司的计划、学生的作业、医生的建议和老师的问题。"
)


def ensure_demo_model(cache_dir: Path | None = None) -> Path:
    """The demo model's folder in Hugging Face layout, made if it is not there yet. Two processes may race."""
    root = cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenswarm"
    folder = root / _NAME
    if (folder / "config.json").is_file():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{_NAME}-", dir=root))
    try:
        _make(unfinished)
        unfinished.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # otherwise the other process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _make(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    _tokenizer().save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=_VOCAB_SIZE, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1536, max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=0, eos_token_id=[1, 4], pad_token_id=2, dtype="bfloat16",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    library = Path(sysconfig.get_path("stdlib"))
    texts = [(library / name).read_text("utf-8") for name in _ENGLISH_SOURCES if (library / name).is_file()]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=[_BOS, _EOS, _PAD, _START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *[_CHINESE] * 5], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_BOS, eos_token=_EOS, pad_token=_PAD, chat_template=_CHAT_TEMPLATE
    )
