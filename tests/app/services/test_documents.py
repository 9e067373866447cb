import pytest

from app.errors import ContractRefused
from app.services import documents
from contracts.builds import parse_build
from tests.app.world import BUILDS, CANDIDATE, CONTRACT, STEADY

NO_TRAFFIC = CONTRACT.replace(", stages: [shadow, canary, full]}", "}")
UNUSED = CONTRACT.replace("  all: {}", "  all: {}\n  rust: {where: {language: rust}}")


def test_a_good_contract_has_nothing_to_say():
    document, warnings = documents.accept(CONTRACT.encode())
    assert (document.contract.metadata.name, document.file, warnings) == ("tiny", "contract.yaml", ())


def test_warnings_come_with_the_document():
    _, (warning,) = documents.accept(UNUSED.encode(), "c.yaml")
    assert (warning.file, warning.code, warning.severity) == ("c.yaml", "unused-slice", "warning")


def test_what_judges_nothing_is_refused_with_everything_there_is_to_say():
    text = NO_TRAFFIC.replace("  all: {}", "  all: {}\n  rust: {where: {language: rust}}")
    with pytest.raises(ContractRefused) as refused:
        documents.accept(text.encode(), "c.yaml")
    found = {one["code"]: one for one in refused.value.extra["diagnostics"]}
    assert {code: one["severity"] for code, one in found.items()} == {
        "unused-slice": "warning",
        "no-traffic": "error",
    }
    line = text.splitlines()[found["no-traffic"]["line"] - 1]
    assert "telemetry_age" in line
    assert refused.value.detail.startswith("1 problem(s), the first one: c.yaml:")
    assert "telemetry_age" in refused.value.detail


def test_what_does_not_read_is_refused():
    with pytest.raises(ContractRefused) as refused:
        documents.accept(b"clauses: [")
    assert set(refused.value.extra["diagnostics"][0]) == {
        "file",
        "line",
        "column",
        "code",
        "severity",
        "message",
    }


def test_with_builds_the_fallback_is_checked_too():
    document, _ = documents.accept(CONTRACT.encode())
    steady, candidate = (parse_build(BUILDS[name]).stated for name in (STEADY, CANDIDATE))
    assert documents.checked(document, {STEADY: steady}) == []
    with pytest.raises(ContractRefused, match="is the candidate itself") as refused:
        documents.checked(document, {STEADY: candidate})
    (only,) = refused.value.extra["diagnostics"]
    assert only["code"] == "fallback-is-candidate"
    assert CONTRACT.splitlines()[only["line"] - 1][only["column"] - 1 :] == f"{STEADY}}}"
