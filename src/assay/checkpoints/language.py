"""A Hugging Face model and the texts it reads, for everything that measures a model on texts.

Models are loaded offline, from safetensors, in float32 and in evaluation mode; code that comes with a model is
never run.  Texts are not padded: :func:`batches` puts those of equal token length together.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.checkpoints.header import TensorInfo
from assay.checkpoints.io import Checkpoint, fingerprint, tensor_sha256
from assay.core.errors import InputError

MIN_TOKENS = 32
"""Calibration refuses fewer tokens than this: they say nothing about a layer."""


def stored_names(model: Any, tensors: Mapping[str, TensorInfo]) -> dict[int, str]:
    """The name in the files of each parameter, by identity; tied parameters find the one name stored."""
    prefix = f"{model.base_model_prefix}."
    stored: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        for candidate in (name, name.removeprefix(prefix), prefix + name):
            if candidate in tensors and tensors[candidate].shape == tuple(parameter.shape):
                stored.setdefault(id(parameter), candidate)
                break
    return stored


def load_model(folder: Path) -> tuple[Any, Any]:
    """The model (float32, evaluation mode) and its tokenizer; nothing is fetched, no foreign code runs."""
    import transformers

    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: calibration needs a whole Hugging Face model folder")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **offline)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **offline)
    except Exception as error:  # the libraries raise a dozen unrelated types here
        raise InputError(f"{folder} does not load offline: {_first_line(error)}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{folder} is an encoder-decoder model, which calibration does not support")
    architecture = (getattr(config, "architectures", None) or [""])[0]
    loader: Any = transformers.AutoModel
    if architecture.endswith("ForSequenceClassification"):
        loader = transformers.AutoModelForSequenceClassification
    elif architecture.endswith(("ForCausalLM", "LMHeadModel")):
        loader = transformers.AutoModelForCausalLM
    try:
        with _quiet():  # what it would report is checked below
            model, report = loader.from_pretrained(
                folder, config=config, use_safetensors=True, output_loading_info=True, **offline
            )
    except Exception as error:
        raise InputError(f"{folder} does not load offline: {_first_line(error)}") from error
    absent = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if absent:
        raise InputError(
            f"{folder} has no weights for {absent[0]} ({len(absent)} missing): they would be random and the "
            "moments would mean nothing"
        )
    model = model.float().eval()
    model.config.use_cache = False
    return model, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bar and the report that transformers prints when a model loads."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file that are not blank.

    Raises:
        InputError: there is no such file, it is not UTF-8, or it holds no text.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no calibration text {file}")
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise InputError(f"the calibration text {file} is not UTF-8; convert it first") from None
    if not lines:
        raise InputError(f"the calibration text {file} is empty; write one text a line")
    return lines


def choose_texts(texts: Sequence[str], max_samples: int | None) -> list[str]:
    """The first `max_samples` texts; :class:`InputError` where there are none, or one is empty."""
    if isinstance(texts, str):
        raise InputError("calibration texts must be a list of strings, not one string")
    if max_samples is not None and max_samples < 1:
        raise InputError(f"max_samples is {max_samples}: it must be at least 1")
    chosen = list(texts[:max_samples])
    if not chosen:
        raise InputError("there are no calibration texts: give at least one")
    for number, text in enumerate(chosen, start=1):
        if not isinstance(text, str) or not text.strip():
            what = "is empty" if isinstance(text, str) else f"is a {type(text).__name__}, not a string"
            raise InputError(f"calibration text {number} {what}: remove it")
    return chosen


def token_limit(max_length: int, tokenizer: Any, config: Any) -> int:
    """Tokens kept of a text: `max_length`, or what tokenizer and model can take."""
    longest = getattr(config, "max_position_embeddings", None) or max_length
    return min(max_length, tokenizer.model_max_length, longest)


def tokenize(tokenizer: Any, texts: Sequence[str], limit: int) -> list[dict[str, list[int]]]:
    """The model's inputs for each text; :class:`InputError` where a text has no token, or all have too few."""
    encoded = []
    content = 0
    for number, text in enumerate(texts, start=1):
        item = dict(tokenizer(text, truncation=True, max_length=limit, return_special_tokens_mask=True))
        tokens = item.pop("special_tokens_mask").count(0)
        if tokens == 0:
            raise InputError(f"calibration text {number} has no tokens in this model's vocabulary: remove it")
        content += tokens
        encoded.append(item)
    if content < MIN_TOKENS:
        raise InputError(f"the calibration texts have {content} tokens: give at least {MIN_TOKENS}")
    return encoded


def batches(encoded: Iterable[dict[str, list[int]]], size: int) -> Iterator[list[dict[str, list[int]]]]:
    """Batches of equal token length, shortest first."""
    by_length: dict[int, list[dict[str, list[int]]]] = defaultdict(list)
    for item in encoded:
        by_length[len(item["input_ids"])].append(item)
    for length in sorted(by_length):
        same = by_length[length]
        for start in range(0, len(same), size):
            yield same[start : start + size]


def checkpoint_fingerprint(checkpoint: Checkpoint) -> str:
    """:func:`assay.checkpoints.io.fingerprint` of a whole checkpoint."""
    digests = {name: tensor_sha256(info, checkpoint) for name, info in checkpoint.tensors.items()}
    return fingerprint(checkpoint.tensors, digests)


def digest_texts(texts: Iterable[str]) -> str:
    """sha256 of texts, each encoded as UTF-8 behind its length."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
