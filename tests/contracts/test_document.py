"""Reading contracts: every mistake at its line and column, all at once; the digest of the meaning."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contracts
from contracts.document import InvalidContract, canonical, digest, read
from contracts.model import Contract
from tests.contracts.document_kit import BASE, changed, places

EXAMPLES = Path(contracts.__file__).parent / "examples"


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.yaml")))
def test_examples_read(name: str) -> None:
    document = read((EXAMPLES / name).read_bytes(), name)
    assert document.digest.startswith("sha256:")
    assert document.digest == digest(document.contract)


def test_the_document_knows_its_places() -> None:
    document = read(BASE.encode(), "c.yaml")
    assert document.text == BASE
    assert document.locate("clauses", 0, "limit") == (17, 12)
    assert document.locate("clauses", 0, "phase") == (14, 5)
    assert document.locate("rl", "clip") == (1, 1)


YAML_PROBLEMS = [
    (b"", [(1, 1, "empty")]),
    (b"# nothing\n", [(1, 1, "empty")]),
    (b"---\n...\n", [(2, 1, "no-value")]),
    (b"[1, 2]\n", [(1, 1, "not-a-mapping")]),
    (b"word\n", [(1, 1, "not-a-mapping")]),
    (b"a: x\n b: \xff\n", [(2, 5, "not-utf8")]),
    (b"\xff\xfea\x00", [(1, 1, "not-utf8")]),
    (b"a: \x07", [(1, 4, "character")]),
    (b"a:\r\n\tb: 1\r\n", [(2, 1, "tab")]),
    (b"a: 1\n  b: 2\n", [(2, 4, "syntax")]),
    (b"a: 'x\n", [(2, 1, "syntax")]),
    (b"%YAML 2.0\n---\na: 1", [(1, 1, "syntax")]),
    (b"a: " + b"[" * 64, [(1, 36, "too-complex")]),
    (b"a: " + b"x" * (1 << 20), [(1, 1, "too-large")]),
    (b"a: [" + b"1, " * 20_001 + b"]", [(1, 59_999, "too-complex")]),
]


@pytest.mark.parametrize(("raw", "expected"), YAML_PROBLEMS, ids=lambda v: repr(v[:20]))
def test_what_is_not_a_document(raw: bytes, expected: list[tuple[int, int, str]]) -> None:
    assert places(raw) == expected


REFUSED = [
    ("  name: small\n", "  name: &n small\n", [(4, 9, "anchor")]),
    ("  name: small\n", "  name: *n\n", [(4, 9, "alias")]),
    ("  name: small\n", "  name: !!str small\n", [(4, 9, "tag")]),
    ("  name: small\n", "  name: small\n  name: other\n", [(5, 3, "duplicate-key")]),
    ("  name: small\n", "  name:\n", [(4, 3, "no-value")]),
    ("  name: small\n", "  name: ~\n", [(4, 9, "no-value")]),
    ("  name: small\n", "  name: small\n  1: x\n", [(5, 3, "key")]),
    ("  name: small\n", "  name: small\n  ? [x]\n  : y\n", [(5, 5, "key")]),
    ("  name: small\n", '  name: "a\\0"\n', [(4, 9, "character")]),
    ("  name: small\n", '  name: "\\ud800"\n', [(4, 9, "character")]),
    ("  train: {engine: torch}\n", "  <<: {train: {engine: torch}}\n", [(7, 3, "merge-key")]),
    ("apiVersion: kernel", "%YAML 1.1\n---\napiVersion: kernel", [(1, 1, "yaml-version")]),
    ("  shadow: {deadline: 10m}\n", "  shadow: {deadline: 10m}\n---\na: 1\n", [(24, 1, "several-documents")]),
]


@pytest.mark.parametrize(
    ("old", "new", "expected"), REFUSED, ids=[e[-1][0][2] + str(i) for i, e in enumerate(REFUSED)]
)
def test_yaml_the_language_refuses(old: str, new: str, expected: list[tuple[int, int, str]]) -> None:
    assert places(changed(old, new)) == expected


SHAPE = [
    ("    exceedance: 0.05\n", "    exceedence: 0.05\n", [(19, 5, "unknown-key")]),
    ("  version: 1.0.0\n", "  version: 1.0\n", [(5, 12, "value")]),
    ("  version: 1.0.0\n", "  version: v1.0.0\n", [(5, 12, "value")]),
    ("  name: small\n", "  name: -small\n", [(4, 9, "value")]),
    ("  name: small\n", "", [(4, 3, "missing-key")]),
    ("kind: KernelContract", "kind: Contract", [(2, 7, "value")]),
    ("apiVersion: ", "api_version: ", [(1, 1, "missing-key"), (1, 1, "unknown-key")]),
    ("{engine: torch}", "{engine: [torch]}", [(7, 19, "value")]),
    ("    kind: soft", "    kind: sofft", [(18, 11, "value")]),
    ("{lte: 0.1}", "{}", [(17, 12, "value")]),
    ("{lte: 0.1}", "{lte: 0.1, gte: 0.0}", [(17, 12, "value")]),
    ("{lte: 0.1}", "{lte: .inf}", [(17, 18, "value")]),
    ("{lte: 0.1}", "{lte: .nan}", [(17, 18, "value")]),
    ("{lte: 0.1}", "{lte: 0.1 parsec}", [(17, 18, "value")]),
    ("{lte: 0.1}", "0.1", [(17, 12, "value")]),
    ("exceedance: 0.05", "exceedance: 1.5", [(19, 17, "value")]),
    ("exceedance: 0.05", "exceedance: '0.05'", [(19, 17, "value")]),
    ("exceedance: 0.05", "exceedance: .nan", [(19, 17, "value")]),
    ("{deadline: 10m}", "{min_prompts: '96'}", [(23, 25, "value")]),
    ("{deadline: 10m}", "{min_prompts: 1e400}", [(23, 25, "value")]),
    ("{deadline: 10m}", "{deadline: 10 parsec}", [(23, 22, "value")]),
    ("stages:\n", "escalation: {L7: [log]}\nstages:\n", [(22, 14, "name")]),
    ("stages:\n", "escalation: {L1: log}\nstages:\n", [(22, 18, "value")]),
    ("stages:\n", "escalation: {L1: [log, logg]}\nstages:\n", [(22, 24, "value")]),
    ("stages:\n", "escalation: {L1: {default: [log, 3]}}\nstages:\n", [(22, 34, "value")]),
    ("stages:\n", "escalation: {L1: {ful: [log]}}\nstages:\n", [(22, 19, "unknown-key")]),
    ("  long:\n", "  lo ng:\n", [(10, 3, "name"), (20, 19, "unknown-slice")]),
]


@pytest.mark.parametrize(("old", "new", "expected"), SHAPE)
def test_values_of_the_wrong_shape(old: str, new: str, expected: list[tuple[int, int, str]]) -> None:
    assert places(changed(old, new)) == expected


def test_every_problem_at_once_and_in_order() -> None:
    text = (
        BASE.replace("tv", "tvv")
        .replace("1.0.0", "1")
        .replace("level: L1", "levl: L1")
        .replace("torch}", "*t}")
    )
    assert places(text) == [
        (5, 12, "value"),
        (7, 19, "alias"),
        (14, 5, "missing-key"),
        (16, 13, "unknown-metric"),
        (21, 5, "unknown-key"),
    ]
    with pytest.raises(InvalidContract, match=r"c\.yaml:16:13: unknown metric 'tvv'; did you mean 'tv'\?"):
        read(text.encode(), "c.yaml")


def test_byte_order_mark_and_line_ends_change_neither_places_nor_digest() -> None:
    plain = read(BASE.encode())
    windows = b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode()
    assert read(windows).digest == plain.digest
    assert dict(read(windows).locations) == dict(plain.locations)
    assert read(windows).text.encode() == windows


def test_columns_count_characters() -> None:
    text = changed("  train: {engine: torch}", "  train: {engine: 'µ∞', dtype: [x]}")
    assert places(text) == [(7, 32, "value")]


SAME = [
    ("version: 1.0.0", "version: '1.0.0'  # quoted"),
    ("  name: small\n  version: 1.0.0\n", "  version: 1.0.0\n  name: small\n"),
    ("deadline: 10m", "deadline: 600"),
    ("deadline: 10m", "deadline: 600.0 s"),
    ("lte: 0.1", "lte: 1e-1"),
    ("lte: 0.1", "lte: 10%"),
    ("[all, long]", "[long, all]"),
    ("{gte: 512}", "{gte: 512.0}"),
    ("slices:\n  long:", "slices:\n  all: {}\n  long:"),
    ("stages:\n", "certainty: {alpha: 0.05}\nstages:\n"),
    (
        "stages:\n",
        "escalation: {L1: [log], L2: [freeze, guard, log], L3: [page, freeze, fallback, log]}\nstages:\n",
    ),
    (
        "stages:\n",
        "escalation: {L1: {default: [page], offline_ci: [log], shadow: [log], canary: [log], full: [log]}, "
        "L2: {default: [freeze, guard, log], full: [log, freeze, guard]}, "
        "L3: [page, freeze, fallback, log]}\nstages:\n",
    ),
]
OTHER = [
    ("lte: 0.1", "lte: 0.1000001"),
    ("lte: 0.1", "abs_lte: 0.1"),
    ("exceedance: 0.05", "exceedance: 0.051"),
    ("[all, long]", "[all]"),
    ("{gte: 512}", "{gt: 512}"),
    ("{gte: 512}", "512"),
    ("level: L1", "level: L2"),
    ("deadline: 10m", "deadline: 11m"),
    ("{engine: torch}", "{engine: Torch}"),
    ("stages:\n", "certainty: {alpha: 0.04}\nstages:\n"),
    ("stages:\n", "escalation: {L1: [log], L2: [log, freeze], L3: [log, fallback]}\nstages:\n"),
    (
        "stages:\n",
        "escalation: {L1: {default: [log], full: [page]}, L2: [log, guard, freeze], "
        "L3: [log, fallback, freeze, page]}\nstages:\n",
    ),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_the_same_meaning_has_the_same_digest(old: str, new: str) -> None:
    assert read(changed(old, new).encode()).digest == read(BASE.encode()).digest


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_another_meaning_has_another_digest(old: str, new: str) -> None:
    assert read(changed(old, new).encode()).digest != read(BASE.encode()).digest


def test_clause_order_is_no_meaning_and_canonical_reads_back() -> None:
    contract = read((EXAMPLES / "coder-bf16.yaml").read_bytes()).contract
    turned = contract.model_copy(update={"clauses": contract.clauses[::-1]})
    assert canonical(turned) == canonical(contract)
    again = Contract.model_validate(json.loads(canonical(contract)))
    assert canonical(again) == canonical(contract)


def test_core_schema_scalars() -> None:
    """YAML 1.2: NO is a word, 010 is ten, 1e3 a number, 2020-01-01 and 1_0 words."""
    text = changed(
        "{engine: torch}", "{a: NO, b: 010, c: 1e3, d: 2020-01-01, e: 1_0, f: 0x10, g: '8', h: true}"
    )
    assert read(text.encode()).contract.pair.train == {
        "a": "NO",
        "b": 10,
        "c": 1000.0,
        "d": "2020-01-01",
        "e": "1_0",
        "f": 16,
        "g": "8",
        "h": True,
    }


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_read_and_never_crash(raw: bytes) -> None:
    with pytest.raises(InvalidContract) as caught:
        read(raw)
    assert all(d.line >= 1 and d.column >= 1 for d in caught.value.diagnostics)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(BASE) - 1), st.sampled_from(list("\t:{}[],&*!|>'\"%@`#?- \n\0\u2028x0")))
def test_one_wrong_character_reads_or_is_diagnosed(position: int, character: str) -> None:
    text = BASE[:position] + character + BASE[position + 1 :]
    lines = text.count("\n") + text.count("\u2028") + 1
    try:
        read(text.encode())
    except InvalidContract as error:
        found = error.diagnostics
    else:
        return
    assert found
    assert all(1 <= d.line <= lines for d in found)


ALL_OF_IT = "import contracts.document, contracts.lint, contracts.judge, contracts.lifecycle"


def test_importing_needs_neither_torch_nor_numpy() -> None:
    code = f"import sys; {ALL_OF_IT}\nprint({{'torch', 'numpy', 'scipy'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
