"""Kernel builds: how one is written (`torch:dtype=float32`) and what one turns out to be.

A :class:`BuildSpec` is asked for; a :class:`Fingerprint` is what the running kernel reports, and
what the contract's `pair` predicates are matched against.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from contracts.metrics import nearest
from contracts.model import Frozen, Scalar
from contracts.slices import same

DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("sdpa", "eager")
WEIGHTS = ("int8", "int4", "int8-per-tensor")
CACHE_TYPES = ("f32", "f16", "q8_0", "q4_0")  # by their GGUF names


class InvalidBuild(ValueError):
    """A kernel build that cannot be: unknown engine, unknown key, or a value the key does not take.

    Attributes:
        word: the offending engine, key or value.
        suggestion: the nearest right word, or None.
    """

    def __init__(self, message: str, word: str, suggestion: str | None = None) -> None:
        hint = f"; did you mean {suggestion!r}?" if suggestion else ""
        super().__init__(message + hint)
        self.word = word
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class _Option:
    """A key an engine takes: what it accepts in words, and how its text is read."""

    accepts: str
    read: Callable[[str], Scalar]
    choices: tuple[str, ...] = ()


def _choice(*words: str) -> _Option:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return _Option("one of " + ", ".join(words), read, words)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", text):
        raise ValueError(text)
    return text


def _environment(text: str) -> str:
    # A name and never a path: where the interpreter lies is for whoever runs the workers to say.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}", text):
        raise ValueError(text)
    return text


def _base(text: str) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text) or not 0.0 < float(text) < 1e30:
        raise ValueError(text)
    return float(text)


def _gguf(text: str) -> str:
    # A name and never a path: a build comes from whoever may ask for one.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.gguf", text):
        raise ValueError(text)
    return text


def _faults(text: str) -> str:
    found = [part.strip().upper() for part in text.split("+")]
    if not all(re.fullmatch(r"F([1-9]|1[0-8])", name) for name in found):
        raise ValueError(text)
    # Sorted, so that the same faults are the same build.
    return "+".join(sorted(set(found), key=lambda name: int(name[1:])))


def _address(text: str) -> str:
    # Nobody's password or query belongs in a build; `/v1` is the client's to add.
    host = r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
    if not re.fullmatch(rf"https?://{host}(:[0-9]{{1,5}})?(/[A-Za-z0-9._~-]+)*/?", text):
        raise ValueError(text)
    return text.rstrip("/").removesuffix("/v1")


def _served_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9/][A-Za-z0-9._:/@+-]{0,199}", text):
        raise ValueError(text)
    return text


def _variable(text: str) -> str:
    # The name of a secret and never the secret; only variables that say they are keys can be sent.
    if not re.fullmatch(r"([A-Z][A-Z0-9_]{0,63}_)?API_KEY", text):
        raise ValueError(text)
    return text


_COUNT = _Option("a whole number of at least 1", _count)
_DTYPE, _ATTENTION = _choice(*DTYPES), _choice(*ATTENTION)
_BASE = _Option("a positive number", _base)
_GGUF = _Option("the name of a .gguf file in the checkpoint directory", _gguf)
_CACHE_TYPE = _choice(*CACHE_TYPES)
_SWITCH = _choice("on", "off")
_FAULT = _Option("faults F1 to F18, joined by +", _faults)
_WORD = _Option("a word as the engine writes it", _word)

ENGINES: dict[str, dict[str, _Option]] = {
    "torch": {
        "dtype": _DTYPE,
        "attn": _ATTENTION,
        "weights": _choice(*WEIGHTS),
        "cache": _SWITCH,
        "compile": _SWITCH,
        "grad": _SWITCH,
        "checkpointing": _SWITCH,
        "fault": _FAULT,
    },
    "torch-serving": {
        "dtype": _DTYPE,
        "attn": _ATTENTION,
        "chunk": _COUNT,
        "batch": _COUNT,
        "rope_theta": _BASE,
        "weights": _choice(*WEIGHTS),
        "fault": _FAULT,
    },
    "llamacpp": {
        "file": _GGUF,
        "n_ctx": _COUNT,
        "n_batch": _COUNT,
        "n_ubatch": _COUNT,
        "type_k": _CACHE_TYPE,
        "type_v": _CACHE_TYPE,
        "flash_attn": _choice("on", "off"),
        "threads": _COUNT,
    },
    "vllm": {
        "dtype": _DTYPE,
        "attn": _WORD,
        "block_size": _COUNT,
        "max_model_len": _COUNT,
        "chunk": _COUNT,
        "batch": _COUNT,
        "enforce_eager": _SWITCH,
        "quantization": _WORD,
        "kv_cache_dtype": _WORD,
        "kv_cache_gib": _COUNT,
        "prefix_caching": _SWITCH,
        "tp": _COUNT,
        "rope_theta": _BASE,
    },
    "openai": {
        "url": _Option("a server's address, such as http://127.0.0.1:8000", _address),
        "model": _Option("a model's name as the server calls it", _served_name),
        "top_logprobs": _COUNT,
        "max_top_logprobs": _COUNT,
        "api_key": _Option("the name of an environment variable ending in API_KEY", _variable),
        "timeout": _COUNT,
    },
}
for _engine, _keys in ENGINES.items():
    if _engine == "openai":
        continue  # it runs elsewhere
    _keys["python"] = _Option("the name of an environment: letters, digits and dashes", _environment)

_STATES = {"attn": "attention_backend", "weights": "quantization"}  # options by their fingerprint's field
# Options that say where a build runs or how it is asked, and not what it is.
_ASKED = {"python", "url", "top_logprobs", "max_top_logprobs", "api_key", "timeout"}


class BuildSpec(Frozen):
    """A kernel build as asked for: an engine and the options given; the engine fills in the rest.

    `str()` gives the written form with sorted keys, which :func:`parse_build` reads back.
    """

    engine: str
    options: dict[str, Scalar] = Field(default_factory=dict)

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={_text(value)}" for key, value in sorted(self.options.items()))
        return f"{self.engine}:{pairs}" if pairs else self.engine

    @property
    def digest(self) -> str:
        """`sha256:` and the hex digest of the written form."""
        return "sha256:" + hashlib.sha256(str(self).encode()).hexdigest()

    @property
    def stated(self) -> Fingerprint:
        """What is known of the running kernel from the spec alone; the engine's defaults are not."""
        fields = {_STATES.get(key, key): value for key, value in self.options.items() if key not in _ASKED}
        flags = {key: value for key, value in fields.items() if key not in FINGERPRINT_FIELDS}
        named = {key: value for key, value in fields.items() if key in FINGERPRINT_FIELDS}
        return Fingerprint.model_validate({"engine": self.engine, **named, "flags": flags})


def parse_build(written: str | Mapping[str, object]) -> BuildSpec:
    """The build of `engine:key=value,...`, or of a mapping with `engine` and the same keys.

    Raises InvalidBuild naming the unknown engine, key or value and the nearest right word.
    """
    engine, pairs = _split(written) if isinstance(written, str) else _unpack(written)
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise InvalidBuild(
            f"unknown engine {engine!r}: use one of {known}", engine, nearest(engine, [*ENGINES])
        )
    options: dict[str, Scalar] = {}
    for key, text in pairs:
        if key in options:
            raise InvalidBuild(f"{engine}: {key!r} is given twice", key)
        options[key] = _option(engine, key, text)
    return BuildSpec(engine=engine, options=options)


def with_faults(build: BuildSpec, faults: Sequence[str]) -> BuildSpec:
    """The build with these faults of the zoo beside those it already has, as its option `fault`.

    Raises InvalidBuild for an unknown fault, and for an engine that faults are not made for.
    """
    if not faults:
        return build
    known = [str(build.options["fault"])] if "fault" in build.options else []
    return parse_build({"engine": build.engine, **build.options, "fault": "+".join([*known, *faults])})


def _option(engine: str, key: str, text: str) -> Scalar:
    known = ENGINES[engine]
    if key not in known:
        keys = ", ".join(known)
        raise InvalidBuild(
            f"engine {engine} has no key {key!r}: use one of {keys}", key, nearest(key, [*known])
        )
    try:
        return known[key].read(text)
    except ValueError:
        message = f"{engine}: {key} takes {known[key].accepts}, not {text!r}"
        raise InvalidBuild(message, text, nearest(text, known[key].choices)) from None


def _split(text: str) -> tuple[str, list[tuple[str, str]]]:
    engine, colon, rest = text.strip().partition(":")
    if colon and not rest.strip():
        raise InvalidBuild(f"nothing after the colon in {text!r}: write {engine}:key=value", text)
    pairs = []
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise InvalidBuild(f"not key=value: {part!r} in {text!r}", part)
        pairs.append((key.strip(), value.strip()))
    return engine.strip(), pairs


def _unpack(mapping: Mapping[str, object]) -> tuple[str, list[tuple[str, str]]]:
    engine = mapping.get("engine")
    if not isinstance(engine, str):
        raise InvalidBuild('a kernel build names its engine: {"engine": "torch", ...}', "engine")
    pairs = []
    for key, value in mapping.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidBuild(f"{engine}: {key} is a word or a number, not {value!r}", str(key))
        if key != "engine":
            pairs.append((str(key), _text(value)))
    return engine, pairs


def _text(value: Scalar) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


class Fingerprint(Frozen):
    """What a running kernel says it is; None is "not known", which matches nothing.

    Attributes:
        engine: the engine's name as builds are written, for example `torch-serving`.
        version: the engine's version.
        dtype: of weights and activations.
        quantization: scheme, `none` when there is none.
        attention_backend: for example `sdpa`.
        kv_cache_dtype: `none` for an engine without a cache.
        parallelism: for example `tp1`.
        device: hardware it runs on.
        driver: version of the device's driver, where it has one.
        block_size: positions of one block of a paged KV cache.
        compile_mode: what compiles the graph, `eager` when nothing does.
        batch_invariance: `on` where the engine promises results that do not depend on the batch.
        scales: `sha256:` digest of the quantisation's scales.
        image: digest of the container image.
        flags: everything else that changes the program.
    """

    engine: Annotated[str, Field(min_length=1)]
    version: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    attention_backend: str | None = None
    kv_cache_dtype: str | None = None
    parallelism: str | None = None
    device: str | None = None
    driver: str | None = None
    block_size: int | None = None
    compile_mode: str | None = None
    batch_invariance: str | None = None
    scales: str | None = None
    image: str | None = None
    flags: dict[str, Scalar] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """`sha256:` and the hex digest of what is known, as JSON with sorted keys."""
        known = self.model_dump(mode="json", exclude_none=True)
        text = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def attribute(self, name: str) -> Scalar | None:
        """A field by its name, else a flag; None when the fingerprint has neither."""
        value: Scalar | None = self.flags.get(name)
        return getattr(self, name) if name in FINGERPRINT_FIELDS else value


FINGERPRINT_FIELDS: tuple[str, ...] = tuple(name for name in Fingerprint.model_fields if name != "flags")


def matches(predicate: Mapping[str, Scalar], fingerprint: Fingerprint) -> list[str]:
    """The mismatches in words, one an attribute; empty when the fingerprint is as asked.

    Case-sensitive; an attribute the fingerprint lacks is a mismatch.
    """
    found = []
    for name, asked in predicate.items():
        actual = fingerprint.attribute(name)
        if actual is None:
            found.append(f"{name} must be {asked!r}, and the build does not say what it is")
        elif not same(asked, actual):
            found.append(f"{name} must be {asked!r}, not {actual!r}")
    return found
