"""Builds as written, and fingerprints against predicates."""

import pytest

from contracts.builds import ENGINES, BuildSpec, Fingerprint, InvalidBuild, matches, parse_build, with_faults


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("torch", "torch"),
        (" torch : dtype = float32 ", "torch:dtype=float32"),
        ("torch:dtype=float32,attn=sdpa", "torch:attn=sdpa,dtype=float32"),
        ("torch-serving:rope_theta=1e4,chunk=064", "torch-serving:chunk=64,rope_theta=10000"),
        (
            {"engine": "torch-serving", "weights": "int8-per-tensor", "batch": 8},
            "torch-serving:batch=8,weights=int8-per-tensor",
        ),
        ({"engine": "torch-serving", "rope_theta": 10000.0}, "torch-serving:rope_theta=10000"),
    ],
)
def test_builds_have_one_written_form(written: object, canonical: str) -> None:
    build = parse_build(written)
    assert str(build) == canonical
    assert parse_build(canonical) == build
    assert parse_build({"engine": build.engine, **build.options}) == build


def test_options_are_typed() -> None:
    options = parse_build("torch-serving:chunk=64,rope_theta=10000,dtype=bfloat16").options
    assert options == {"chunk": 64, "rope_theta": 10_000.0, "dtype": "bfloat16"}
    assert isinstance(options["chunk"], int)


@pytest.mark.parametrize(
    ("written", "word", "suggestion"),
    [
        ("torch-servng:dtype=float32", "torch-servng", "torch-serving"),
        ("", "", None),
        ("torch:dtyp=float32", "dtyp", "dtype"),
        ("torch:chunk=64", "chunk", None),
        ("torch:dtype=float23", "float23", "float32"),
        ("torch:dtype=FLOAT32", "FLOAT32", None),
        ("torch:dtype", "dtype", None),
        ("torch:dtype=", "dtype=", None),
        ("torch:", "torch:", None),
        ("torch:dtype=float32,", "", None),
        ("torch:dtype=float32,dtype=float32", "dtype", None),
        ("torch-serving:chunk=0", "0", None),
        ("torch-serving:chunk=-1", "-1", None),
        ("torch-serving:batch=1.5", "1.5", None),
        ("torch-serving:rope_theta=nan", "nan", None),
        ("torch-serving:rope_theta=inf", "inf", None),
        ("torch-serving:weights=int9", "int9", "int8"),
        ({"dtype": "float32"}, "engine", None),
        ({"engine": "torch", "dtype": None}, "dtype", None),
        ({"engine": "torch", "attn": True}, "attn", None),
    ],
)
def test_what_is_no_build(written: object, word: str, suggestion: str | None) -> None:
    with pytest.raises(InvalidBuild) as caught:
        parse_build(written)
    assert (caught.value.word, caught.value.suggestion) == (word, suggestion)
    assert suggestion is None or suggestion in str(caught.value)


def test_digests_follow_the_meaning() -> None:
    assert (
        parse_build("torch:attn=sdpa,dtype=float32").digest
        == parse_build("torch:dtype=float32,attn=sdpa").digest
    )
    assert parse_build("torch:dtype=float32").digest != parse_build("torch").digest
    assert (
        parse_build({"engine": "torch-serving", "rope_theta": 10_000}).digest
        == parse_build("torch-serving:rope_theta=1e4").digest
    )


PRINT = Fingerprint(
    engine="torch-serving", dtype="bfloat16", flags={"chunk": 64, "tf32": False, "engine": "other"}
)


@pytest.mark.parametrize(
    ("predicate", "named"),
    [
        ({}, []),
        ({"engine": "torch-serving", "dtype": "bfloat16"}, []),
        ({"chunk": 64.0, "tf32": False}, []),
        ({"engine": "other"}, ["engine"]),
        ({"dtype": "BFloat16"}, ["dtype"]),
        ({"chunk": "64"}, ["chunk"]),
        ({"tf32": 0}, ["tf32"]),
        ({"version": "1", "colour": "red"}, ["version", "colour"]),
        ({"flags": "x"}, ["flags"]),
    ],
)
def test_mismatches_in_words(predicate: dict[str, object], named: list[str]) -> None:
    found = matches(predicate, PRINT)
    assert [line.split()[0] for line in found] == named


def test_fingerprint_digest_ignores_the_order_of_flags() -> None:
    one = Fingerprint(engine="torch", flags={"a": 1, "b": 2})
    assert one.digest == Fingerprint(engine="torch", flags={"b": 2, "a": 1}).digest
    assert one.digest != Fingerprint(engine="torch", flags={"a": 1, "b": 3}).digest
    assert Fingerprint.model_validate_json(one.model_dump_json()) == one


def test_known_engines() -> None:
    assert {name for name, keys in ENGINES.items() if "python" not in keys} == {"openai"}
    assert {name: set(keys) - {"python"} for name, keys in ENGINES.items() if name != "vllm"} == {
        "torch": {"dtype", "attn", "weights", "cache", "compile", "grad", "checkpointing", "fault"},
        "torch-serving": {"dtype", "attn", "chunk", "batch", "rope_theta", "weights", "fault"},
        "llamacpp": {"file", "n_ctx", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "threads"},
        "openai": {"url", "model", "top_logprobs", "max_top_logprobs", "api_key", "timeout"},
    }
    assert BuildSpec(engine="torch").digest.startswith("sha256:")


def test_what_a_spec_states_and_nothing_else() -> None:
    build = parse_build("torch-serving:dtype=float16,attn=eager,weights=int8-per-tensor,chunk=64")
    assert build.stated == Fingerprint(
        engine="torch-serving",
        dtype="float16",
        attention_backend="eager",
        quantization="int8-per-tensor",
        flags={"chunk": 64},
    )
    assert parse_build("torch").stated == Fingerprint(engine="torch")


def test_faults_are_added_to_those_a_build_has() -> None:
    build = parse_build("torch-serving:dtype=bfloat16,fault=F13")
    assert str(with_faults(build, ["F9", "f13"])) == "torch-serving:dtype=bfloat16,fault=F9+F13"
    assert with_faults(build, []) == build
    assert with_faults(build, ["F9"]).stated.flags == {"fault": "F9+F13"}
    for wrong, words in ((["F19"], "F1 to F18"), ([""], "F1 to F18")):
        with pytest.raises(InvalidBuild, match=words):
            with_faults(build, wrong)
    with pytest.raises(InvalidBuild, match="no key 'fault'"):
        with_faults(parse_build("vllm"), ["F9"])


def test_a_server_is_a_build() -> None:
    text = (
        "openai:url=http://[::1]:8000/v1/,model=org/name-8B:q8,top_logprobs=5,api_key=MY_API_KEY,timeout=30"
    )
    build = parse_build(text)
    assert build.options["url"] == "http://[::1]:8000"
    assert build.options["model"] == "org/name-8B:q8"
    assert parse_build(str(build)) == build
    assert build.stated == Fingerprint(engine="openai", flags={"model": "org/name-8B:q8"})
    assert parse_build({"engine": "openai", "url": "https://h/base"}).options == {"url": "https://h/base"}


@pytest.mark.parametrize(
    "pair",
    [
        "url=ftp://host", "url=http://user:secret@host", "url=http://host/v1?key=x", "url=host:8000",
        "url=http://host/a b", "api_key=sk-12345", "api_key=HOME", "model=a,b", "timeout=0", "python=vllm",
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_is_refused(pair: str) -> None:
    with pytest.raises(InvalidBuild):
        parse_build(f"openai:{pair}")
