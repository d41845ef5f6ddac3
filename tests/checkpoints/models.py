"""Tiny checkpoints for tests, written with the stock library."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from assay.checkpoints.header import DTYPES, build_header
from assay.checkpoints.io import open_checkpoint

BF16 = ml_dtypes.bfloat16
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> Path:
    """One safetensors file; the stock library where it knows the types, our header where it does not."""
    if all(t.dtype != BF16 and t.dtype.kind in "fiub" for t in tensors.values()):
        save_file(
            {n: np.asarray(t, order="C") for n, t in tensors.items()}, path, metadata or {"format": "pt"}
        )
        return path
    header = build_header(
        [(n, NAMES[t.dtype], t.shape) for n, t in tensors.items()], metadata or {"format": "pt"}
    )
    data = b"".join(np.asarray(t, order="C").tobytes() for t in tensors.values())
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint, in its own type."""
    with open_checkpoint(path) as checkpoint:
        return {
            name: checkpoint.read_rows(name, 0, info.rows).view(DTYPES[info.dtype]).reshape(info.shape)
            for name, info in checkpoint.tensors.items()
        }


def weights(seed: int = 0, dtype=np.float32, rows: int = 48, columns: int = 40) -> dict[str, np.ndarray]:
    """A base of a few layers, with norms, a counter and a scalar."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (0.02 * rng.standard_normal(shape)).astype(dtype)

    return {
        "model.embed.weight": draw(rows, columns),
        "model.layers.0.proj.weight": draw(columns, columns),
        "model.layers.0.norm.weight": (1 + draw(columns).astype(np.float32)).astype(dtype),
        "model.layers.1.conv.weight": draw(8, 6, 3, 3),
        "counter": np.arange(4, dtype=np.int64),
        "scale": np.array(0.5, dtype=dtype),
    }


def tuned(base: dict[str, np.ndarray], seed: int = 1, sigma: float = 2e-3) -> dict[str, np.ndarray]:
    """The base with a small delta on every float tensor."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, tensor in base.items():
        if tensor.dtype.kind in "iub":
            result[name] = tensor + np.asarray(1, tensor.dtype)
        else:
            delta = sigma * rng.standard_normal(tensor.shape)
            result[name] = (tensor.astype(np.float64) + delta).astype(tensor.dtype)
    return result


def pair(folder: Path, dtype=np.float32, **sizes) -> tuple[Path, Path]:
    """Files ``base.safetensors`` and ``tuned.safetensors``."""
    base = weights(0, dtype, **sizes)
    return write(folder / "base.safetensors", base), write(folder / "tuned.safetensors", tuned(base))


def write_folder(folder: Path, tensors: dict[str, np.ndarray], shards: int = 1, **config) -> Path:
    """A Hugging Face folder: config, tokenizer and chat template beside one or several shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "toy", **config}))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    if shards == 1:
        write(folder / "model.safetensors", tensors)
        return folder
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[number::shards]}
        write(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
