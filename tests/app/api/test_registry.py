import pytest

from tests.app.world import BUILDS, CONTRACT, ENDPOINTS, STEADY, TARGET

YAML = {"content-type": "application/yaml"}


def test_everything_registered_is_listed_and_read(registered):
    contracts = registered.get("/v1/contracts").json()["items"]
    assert [(c["name"], c["version"]) for c in contracts] == [("tiny", "1.0.0")]
    one = registered.get("/v1/contracts/tiny/1.0.0").json()
    assert one["yaml"] == CONTRACT
    assert one["digest"] == contracts[0]["digest"]
    assert {b["name"] for b in registered.get("/v1/kernel-builds").json()["items"]} == set(BUILDS)
    for collection, name in (("checkpoints", "model"), ("suites", "suite"), ("kernel-builds", STEADY)):
        item = registered.get(f"/v1/{collection}/{name}").json()
        assert item in registered.get(f"/v1/{collection}").json()["items"], "list and get agree"
        assert item["digest"].startswith("sha256:")
    assert registered.get("/v1/deployments").json()["items"] == [
        registered.get(f"/v1/deployments/{TARGET}").json()
    ]


def test_again_is_200_and_other_content_409(registered):
    assert registered.post("/v1/contracts", content=CONTRACT, headers=YAML).status_code == 200
    changed = CONTRACT.replace("lte: 0.1}", "lte: 0.2}", 1)
    answer = registered.post("/v1/contracts", content=changed, headers=YAML)
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:kernel-contracts:problem:content-conflict"
    again = registered.post("/v1/kernel-builds", json={"name": STEADY, "spec": BUILDS[STEADY]})
    assert again.status_code == 200
    deployment = {"name": TARGET, "known_good": STEADY, "endpoints": ENDPOINTS}
    assert registered.post("/v1/deployments", json=deployment).status_code == 200


def test_a_malformed_contract_lists_every_problem_with_its_place(api):
    bad = CONTRACT.replace("metric: kl", "metric: kk").replace("clauses:", "clausess:", 1)
    answer = api.post("/v1/contracts", content=bad, headers=YAML)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"].endswith("invalid-contract")
    for one in problem["diagnostics"]:
        assert {"file", "line", "column", "code", "severity", "message"} == set(one)
    assert any("clausess" in one["message"] for one in problem["diagnostics"])
    assert api.get("/v1/contracts").json()["items"] == []


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"a: &a [*a]", b"- 1", b"%YAML 9.9\n---\n", b"\t", b"{" * 5000]
)
def test_odd_documents_are_refused_as_documents(api, body):
    answer = api.post("/v1/contracts", content=body, headers=YAML)
    assert answer.status_code == 422
    assert answer.json()["diagnostics"]


def test_a_contract_is_yaml_and_nothing_else(api):
    for headers in ({"content-type": "application/json"}, {"content-type": "text/plain"}, {}):
        answer = api.post("/v1/contracts", content=CONTRACT, headers=headers)
        assert answer.status_code == 415
        assert answer.headers["content-type"] == "application/problem+json"
    assert api.post(
        "/v1/contracts", content=CONTRACT, headers={"content-type": "text/yaml; charset=utf-8"}
    ).is_success


@pytest.mark.parametrize(
    ("collection", "body", "words"),
    [
        ("checkpoints", {"name": "x", "path": "/nowhere"}, "/nowhere"),
        ("suites", {"name": "x", "path": "/nowhere.jsonl"}, "/nowhere.jsonl"),
        ("kernel-builds", {"name": "x", "spec": "warp:dtype=float32"}, "warp"),
        ("kernel-builds", {"name": "x", "spec": {"engine": "torch", "dtype": "float99"}}, "float99"),
        ("kernel-builds", {"name": "x", "spec": "torch", "color": "red"}, "color"),
        ("kernel-builds", {"name": "../x", "spec": "torch"}, "name"),
        ("deployments", {"name": "x", "known_good": "nope", "endpoints": {}}, "nope"),
    ],
)
def test_what_cannot_be_used_is_422_and_leaves_nothing(api, collection, body, words):
    answer = api.post(f"/v1/{collection}", json=body)
    assert answer.status_code == 422
    assert words in answer.text
    assert api.get(f"/v1/{collection}").json()["items"] == []
    assert api.get("/v1/audit").json()["items"] == []


def test_the_nearest_right_word_is_suggested(api):
    answer = api.post("/v1/kernel-builds", json={"name": "x", "spec": "torch:dtyp=float32"})
    assert answer.json()["suggestion"] == "dtype"


@pytest.mark.parametrize(
    "path", ["contracts/x/1.0.0", "checkpoints/x", "kernel-builds/x", "suites/x", "deployments/x"]
)
def test_what_is_not_there_is_404(api, path):
    answer = api.get(f"/v1/{path}")
    assert answer.status_code == 404
    assert answer.json()["type"].endswith("not-found")


def test_lint_errors_are_refused_and_warnings_told(api):
    bad = CONTRACT.replace(", stages: [shadow, canary, full]}", "}")
    answer = api.post("/v1/contracts", content=bad, headers=YAML)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "invalid-contract")
    (only,) = answer.json()["diagnostics"]
    assert (only["code"], only["severity"]) == ("no-traffic", "error")
    assert api.get("/v1/contracts").json()["items"] == []

    unwise = CONTRACT.replace("  all: {}", "  all: {}\n  rust: {where: {language: rust}}")
    for status in (201, 200):
        answer = api.post("/v1/contracts", content=unwise, headers=YAML)
        assert answer.status_code == status
        (warning,) = answer.json()["warnings"]
        assert warning == {
            "file": "contract.yaml",
            "line": unwise.splitlines().index("  rust: {where: {language: rust}}") + 1,
            "column": warning["column"],
            "code": "unused-slice",
            "severity": "warning",
            "message": "slice 'rust' is in no clause",
        }
    assert api.get("/v1/contracts/tiny/1.0.0").json()["warnings"] == [warning]
