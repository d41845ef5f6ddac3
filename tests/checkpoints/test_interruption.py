"""kill -9 at random moments, and a full disk: the old output or the new one, and the rerun resumes."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from models import pair, read, tuned, weights, write
from test_keep import energies_of

from assay.checkpoints import apply, pack
from assay.checkpoints.journal import Journal
from assay.checkpoints.plan import GRID

SOURCE = Path(__file__).parents[2] / "src"

RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from assay.checkpoints import apply, merge, pack
verb, folder = sys.argv[2], sys.argv[3]
at = lambda name: folder + "/" + name
print("ready", flush=True)
if verb == "pack":
    pack(at("tuned.safetensors"), at("base.safetensors"), at("out.safetensors"), drop=0.9, bits=4, seed=5)
elif verb == "grid":
    pack(at("tuned.safetensors"), at("base.safetensors"), at("out.safetensors"), bits=0, seed=5,
         energies=at("energies"), keep_map="factored", max_drift=0.3)
elif verb == "apply":
    apply(at("base.safetensors"), at("d.safetensors"), at("out.safetensors"), overwrite=True)
else:
    merge(at("base.safetensors"), [at("d.safetensors"), at("e.safetensors")], at("out.safetensors"), overwrite=True)
"""


def start(verb, folder):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(SOURCE), verb, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def expected(verb, folder):
    """The old output and the new one, as bytes."""
    base, finetuned = pair(folder, np.float32, rows=6000, columns=256)
    if verb == "grid":
        energies_of(base, finetuned).save(folder / "energies")
    pack(finetuned, base, folder / "d.safetensors", seed=1)
    write(folder / "other.safetensors", tuned(weights(0, np.float32, rows=6000, columns=256), seed=9))
    pack(folder / "other.safetensors", base, folder / "e.safetensors", seed=2)
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(SOURCE), verb, str(folder)], capture_output=True, check=True
    )
    assert run.stdout == b"ready\n"
    new = (folder / "out.safetensors").read_bytes()
    (folder / "out.safetensors").unlink()
    if verb in ("pack", "grid"):
        pack(folder / "other.safetensors", base, folder / "out.safetensors", seed=3)
    else:
        apply(base, folder / "e.safetensors", folder / "out.safetensors")
    return (folder / "out.safetensors").read_bytes(), new


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["pack", "grid", "apply", "merge"])
def test_a_kill_leaves_the_old_output_or_the_new_one(tmp_path, verb, kills):
    old, new = expected(verb, tmp_path)
    process = start(verb, tmp_path)
    begun = time.monotonic()
    process.wait()
    duration = time.monotonic() - begun
    rng = random.Random(verb)
    for _ in range(kills):
        (tmp_path / "out.safetensors").write_bytes(old)
        process = start(verb, tmp_path)
        time.sleep(rng.uniform(0, 1.1 * duration))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / "out.safetensors").read_bytes() in (old, new)
    process = start(verb, tmp_path)
    assert process.wait() == 0, process.stderr.read().decode()
    assert (tmp_path / "out.safetensors").read_bytes() == new
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("out")) == ["out.safetensors"]


@pytest.mark.parametrize("bits", [4, GRID])
def test_a_rerun_resumes_what_was_journalled(tmp_path, monkeypatch, bits):
    base, finetuned = pair(tmp_path, np.float32, rows=3000)
    settings = {"seed": 5, "bits": bits}
    if bits == GRID:
        energies_of(base, finetuned).save(tmp_path / "energies")
        settings |= {"energies": tmp_path / "energies", "keep_map": "factored", "max_drift": 0.3}
    pack(finetuned, base, tmp_path / "whole", **settings)
    recorded = []
    original = Journal.record

    def die_after_three(self, key, payload):
        original(self, key, payload)
        recorded.append(key)
        if len(recorded) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "record", die_after_three)
        with pytest.raises(KeyboardInterrupt):
            pack(finetuned, base, tmp_path / "d", **settings)
    assert not (tmp_path / "d").exists()
    resumed = []
    monkeypatch.setattr(
        Journal, "record", lambda self, key, payload: (resumed.append(key), original(self, key, payload))
    )
    pack(finetuned, base, tmp_path / "d", **settings)
    assert set(resumed).isdisjoint(recorded)
    assert len(resumed) + len(recorded) == len(read(base))
    assert (tmp_path / "d").read_bytes() == (tmp_path / "whole").read_bytes()


def test_other_settings_do_not_resume(tmp_path, monkeypatch):
    base, finetuned = pair(tmp_path)
    original = Journal.record

    def die(self, key, payload):
        original(self, key, payload)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "record", die)
        with pytest.raises(KeyboardInterrupt):
            pack(finetuned, base, tmp_path / "d", seed=5)
    pack(finetuned, base, tmp_path / "d", seed=6)
    pack(finetuned, base, tmp_path / "e", seed=6)
    assert (tmp_path / "d").read_bytes() == (tmp_path / "e").read_bytes()


@pytest.mark.parametrize("verb", ["pack", "apply"])
def test_a_full_disk_is_one_sentence_and_no_half_file(tmp_path, verb):
    base, finetuned = pair(tmp_path, np.float32, rows=3000)
    pack(finetuned, base, tmp_path / "d.safetensors")
    (tmp_path / "out.safetensors").write_bytes((tmp_path / "d.safetensors").read_bytes())

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    before = (tmp_path / "out.safetensors").read_bytes()
    code = RUN.replace('print("ready", flush=True)', "from assay.core.errors import InputError").replace(
        "if verb ==", "try:\n  if verb ==", 1
    )
    lines = []
    for line in code.splitlines():
        lines.append(
            "  " + line if line.startswith(("    ", "elif", "else")) and "try:" in "".join(lines) else line
        )
    code = "\n".join(lines) + "\nexcept InputError as error:\n  print(error)\n"
    run = subprocess.run(
        [sys.executable, "-c", code, str(SOURCE), verb, str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        env={**os.environ, "NUMBA_DISABLE_CACHING": "0"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 1
    assert "full" in run.stdout or "space" in run.stdout or "large" in run.stdout
    assert (tmp_path / "out.safetensors").read_bytes() == before
    assert not list(tmp_path.glob("out*partial*"))
