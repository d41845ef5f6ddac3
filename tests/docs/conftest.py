"""A workshop for the documents' examples: small models under the names that the pages use."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def command_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the commands ``assay`` and ``python``."""
    folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("assay", "-m assay"), ("python", "")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A folder with ``base/``, ``finetuned/``, ``second/`` and the LoRA adapter ``adapter/``."""
    rng = np.random.default_rng(0)
    base = {
        "model.layers.0.weight": rng.normal(0, 0.05, (256, 128)).astype(np.float32),
        "model.layers.1.weight": rng.normal(0, 0.05, (128, 256)).astype(np.float32),
        "model.norm.weight": np.ones(128, np.float32),
    }
    config = {"model_type": "toy", "torch_dtype": "float32"}
    for name in ("base", "finetuned", "second"):
        tensors = dict(base)
        if name != "base":
            tensors = {k: v + rng.normal(0, 0.001, v.shape).astype(np.float32) for k, v in base.items()}
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    factors = {}
    for layer, (rows, columns) in enumerate(((256, 128), (128, 256))):
        prefix = f"base_model.model.model.layers.{layer}"
        factors[f"{prefix}.lora_A.weight"] = rng.normal(0, 0.01, (4, columns)).astype(np.float32)
        factors[f"{prefix}.lora_B.weight"] = rng.normal(0, 0.01, (rows, 4)).astype(np.float32)
    save_file(factors, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["0", "1"]}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    return tmp_path
