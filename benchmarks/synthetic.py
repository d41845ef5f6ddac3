"""Synthetic llama-shaped checkpoints of any size, written in a stream: base + N(0, sigma) = fine-tuned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

BLOCK = 1 << 22


def llama_shapes(hidden: int, layers: int, vocab: int, ffn: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a llama-style decoder with untied embeddings."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{n}_proj.weight": (hidden, hidden) for n in "qkvo"}
        shapes |= {f"{prefix}.mlp.{n}_proj.weight": (ffn, hidden) for n in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, ffn)
        shapes |= {f"{prefix}.{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def write_pair(
    folder: Path,
    *,
    hidden: int,
    layers: int,
    vocab: int,
    ffn: int,
    heads: int = 16,
    sigma: float = 2e-3,
    shards: int = 4,
) -> tuple[Path, Path]:
    """Write ``base`` and ``finetuned`` folders (bf16, config, index) unless they are there already."""
    shapes = llama_shapes(hidden, layers, vocab, ffn)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    groups = _split(shapes, shards)
    done = folder / "complete"
    paths = folder / "base", folder / "finetuned"
    if done.exists():
        return paths
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for number, names in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        header = _header({n: shapes[n] for n in names})
        with open(paths[0] / file, "wb") as base, open(paths[1] / file, "wb") as finetuned:
            base.write(header)
            finetuned.write(header)
            for name in names:
                for weights, tuned in _values(name, shapes[name], sigma):
                    base.write(weights.tobytes())
                    finetuned.write(tuned.tobytes())
    total = sum(2 * int(np.prod(s)) for s in shapes.values())
    for path in paths:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    done.touch()
    return paths


def _split(shapes: dict[str, tuple[int, ...]], shards: int) -> list[list[str]]:
    total, groups, filled = sum(int(np.prod(s)) for s in shapes.values()), [[]], 0
    for name, shape in shapes.items():
        if filled > total * len(groups) / shards and len(groups) < shards:
            groups.append([])
        groups[-1].append(name)
        filled += int(np.prod(shape))
    return groups


def _header(shapes: dict[str, tuple[int, ...]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _values(name: str, shape: tuple[int, ...], sigma: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(np.frombuffer(name.encode().ljust(8), np.uint8))
    count = int(np.prod(shape))
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        weights = rng.standard_normal(size, np.float32) * np.float32(0.02)
        if len(shape) == 1:
            weights += 1
        weights = weights.astype(ml_dtypes.bfloat16)
        delta = rng.standard_normal(size, np.float32) * np.float32(sigma)
        yield weights, (weights.astype(np.float32) + delta).astype(ml_dtypes.bfloat16)
