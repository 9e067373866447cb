"""Content digests of a checkpoint directory, by reading its files; nothing is loaded.

A checkpoint is a Hugging Face directory: `config.json`, `tokenizer.json`,
`tokenizer_config.json` and safetensors weights, sharded or not. Pickled weights are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contracts.model import Frozen

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_HEADER_LIMIT = 100 * 2**20  # the cap of the safetensors format itself


class InvalidCheckpoint(ValueError):
    """The directory is not a checkpoint that can be measured; `file` says where."""

    def __init__(self, file: Path, message: str) -> None:
        super().__init__(f"{file}: {message}")
        self.file = file
        self.message = message


class MissingFile(InvalidCheckpoint):
    """A file the checkpoint needs is not there."""


class PickledWeights(InvalidCheckpoint):
    """The weights are pickles, which run code when loaded."""


class BrokenFile(InvalidCheckpoint):
    """A file is truncated, or is not what its name says."""


class ForeignTokenizer(InvalidCheckpoint):
    """The tokenizer is not this checkpoint's."""


class CheckpointDigests(Frozen):
    """`sha256:<hex>` of each part, and of the whole.

    Attributes:
        weights: over the names and contents of the safetensors files.
        tokenizer: over the tokenizer's files.
        chat_template: of the template's text; of nothing where there is none.
        config: over `config.json`'s values, whatever their order and spacing.
        vocab_size: rows of the output distribution, from the config.
    """

    weights: str
    tokenizer: str
    chat_template: str
    config: str
    vocab_size: int

    @property
    def digest(self) -> str:
        """The digest of the four parts together: the checkpoint's identity."""
        parts = self.model_dump(include={"weights", "tokenizer", "chat_template", "config"})
        return _sha256(_canonical(parts))


def checkpoint_digests(path: Path | str) -> CheckpointDigests:
    """Check a checkpoint directory for consistency and digest it.

    Reads every byte of the weights once, in blocks: about a second for 0.5 GB.

    Raises:
        MissingFile: no directory, config, tokenizer or weights, or a shard its index names.
        PickledWeights: only pickled weights are there.
        BrokenFile: a truncated safetensors file, or JSON that does not parse.
        ForeignTokenizer: token ids beyond the config's vocabulary, or other special tokens.
    """
    root = Path(path)
    if not root.is_dir():
        raise MissingFile(root, "no such checkpoint directory")
    config = _read_json(root / CONFIG)
    generation = _read_json(root / GENERATION_CONFIG) if (root / GENERATION_CONFIG).exists() else {}
    tokenizer = _read_json(root / TOKENIZER)
    tokenizer_config = _read_json(root / TOKENIZER_CONFIG)
    vocab_size = _vocab_size(root, config)
    _check_tokenizer(root, vocab_size, (config, generation), tokenizer, tokenizer_config)
    weights = _weight_files(root)
    for file in weights:
        _check_complete(file)
    template = _chat_template(root, tokenizer_config)
    return CheckpointDigests(
        weights=_files_digest(weights),
        tokenizer=_files_digest(
            root / name
            for name in (TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json")
            if (root / name).exists()
        ),
        chat_template=_sha256(template.encode()),
        config=_sha256(_canonical(config)),
        vocab_size=vocab_size,
    )


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _files_digest(files: Iterable[Path]) -> str:
    digests = {}
    for file in files:
        with file.open("rb") as stream:
            digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return _sha256(_canonical(digests))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise MissingFile(file, "the checkpoint has no such file") from None
    except (ValueError, OSError) as error:
        raise BrokenFile(file, f"cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise BrokenFile(file, "is not a JSON object")
    return value


def _vocab_size(root: Path, config: Mapping[str, Any]) -> int:
    size = config.get("vocab_size")
    if size is None and isinstance(config.get("text_config"), dict):
        size = config["text_config"].get("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise BrokenFile(root / CONFIG, f"vocab_size must be a positive integer, not {size!r}")
    return size


def _vocabulary(root: Path, tokenizer: Mapping[str, Any]) -> dict[str, int]:
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    try:
        if isinstance(vocab, list):  # Unigram: [piece, score] pairs, the id is the position
            ids = {piece: index for index, (piece, _) in enumerate(vocab)}
        else:
            ids = dict(vocab or {})
        ids |= {added["content"]: added["id"] for added in tokenizer.get("added_tokens") or ()}
    except (TypeError, ValueError, KeyError) as error:
        raise BrokenFile(root / TOKENIZER, f"has no readable vocabulary: {error!r}") from None
    if not ids or not all(isinstance(token_id, int) for token_id in ids.values()):
        raise BrokenFile(root / TOKENIZER, "has no vocabulary with integer ids")
    return ids


def _check_tokenizer(
    root: Path,
    vocab_size: int,
    configs: tuple[Mapping[str, Any], ...],
    tokenizer: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
) -> None:
    ids = _vocabulary(root, tokenizer)
    token, token_id = max(ids.items(), key=lambda item: item[1])
    if token_id >= vocab_size:
        raise ForeignTokenizer(
            root / TOKENIZER,
            f"token {token!r} has id {token_id}, but {CONFIG} says vocab_size {vocab_size}: "
            "this is not the checkpoint's tokenizer",
        )
    for name in ("bos", "eos"):
        special = tokenizer_config.get(f"{name}_token")
        special = special.get("content") if isinstance(special, dict) else special
        expected = _token_ids(configs, f"{name}_token_id")
        if special is None or not expected or ids.get(special) in expected:
            continue
        raise ForeignTokenizer(
            root / TOKENIZER_CONFIG,
            f"{name}_token {special!r} has id {ids.get(special)}, but {CONFIG} says "
            f"{name}_token_id {sorted(expected)}: this is not the checkpoint's tokenizer",
        )


def _token_ids(configs: tuple[Mapping[str, Any], ...], key: str) -> set[int]:
    found: set[int] = set()
    for config in configs:
        value = config.get(key)
        found |= {v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)}
    return found


def _weight_files(root: Path) -> list[Path]:
    index = root / WEIGHTS_INDEX
    if index.exists():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BrokenFile(index, "has no weight_map")
        return [_shard(root, index, name, weight_map) for name in sorted(set(weight_map.values()))]
    if (root / WEIGHTS).exists():
        return [root / WEIGHTS]
    if pickles := sorted(file.name for pattern in _PICKLED for file in root.glob(pattern)):
        raise PickledWeights(
            root / pickles[0], "pickled weights run code when loaded; convert them to safetensors"
        )
    raise MissingFile(root / WEIGHTS, f"the checkpoint has no weights (nor {WEIGHTS_INDEX})")


def _shard(root: Path, index: Path, name: Any, weight_map: Mapping[str, Any]) -> Path:
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise BrokenFile(index, f"names {name!r}, which is not a safetensors file beside it")
    file = root / name
    if not file.is_file():
        raise MissingFile(file, f"{WEIGHTS_INDEX} names this shard, but it is not there")
    absent = {tensor for tensor, shard in weight_map.items() if shard == name} - _header(file)[0]
    if absent:
        raise BrokenFile(file, f"lacks tensor {min(absent)!r}, which {WEIGHTS_INDEX} says it holds")
    return file


def _header(file: Path) -> tuple[frozenset[str], int]:
    """The tensors a safetensors file holds and the bytes it must have.

    The format: 8 bytes of length, then that much JSON, then the tensors it describes.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        raw = stream.read(length) if length <= _HEADER_LIMIT else b""
    if length == 0 or len(raw) < length:
        raise BrokenFile(file, "truncated, or not safetensors: its header is not complete")
    try:
        header = json.loads(raw)
        ends = {name: int(t["data_offsets"][1]) for name, t in header.items() if name != "__metadata__"}
        size = 8 + length + max(ends.values())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise BrokenFile(file, "its safetensors header is damaged or lists no tensor") from None
    return frozenset(ends), size


def _check_complete(file: Path) -> None:
    _, described = _header(file)
    size = file.stat().st_size
    if size != described:
        raise BrokenFile(
            file, f"is {size} bytes long, its header describes {described}: download or copy it again"
        )


def _chat_template(root: Path, tokenizer_config: Mapping[str, Any]) -> str:
    file = root / CHAT_TEMPLATE
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BrokenFile(file, f"is not UTF-8: {error}") from None
    template = tokenizer_config.get("chat_template") or ""
    return template if isinstance(template, str) else _canonical(template).decode()
