import json

import pytest

from app.services import evidence, jobs, scheduler
from contracts.collect import Collector
from contracts.document import read
from contracts.evidence import Evidence
from contracts.model import Phase
from contracts.promotion import Promotion
from tests.app.world import ATTRIBUTES, CANDIDATE, CONTRACT, GOOD, OTHER, PROMPTS, STEADY, TARGET, TRAIN

ORDER = {
    "deployment": TARGET, "contract": "tiny@1.0.0", "checkpoint": "model",
    "train": TRAIN, "inference": CANDIDATE, "suite": "suite",
}  # fmt: skip
YAML = {"content-type": "application/yaml"}
ANN = {"x-kc-actor": "ann"}


def start(api, **change):
    answer = api.post("/v1/promotions", json={**ORDER, **change}, headers=ANN)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/promotions/{answer.json()['id']}"
    return answer.json()


def measure(app, drift=GOOD, prompts=PROMPTS):
    database = app.state.database
    with database.unit_of_work() as session:
        lease = jobs.lease_next(session, "worker")
    collector = Collector(read(lease.spec.contract.encode()).contract, lease.spec.provenance, lease.shard)
    for i in range(prompts):
        for phase in Phase:
            collector.add_prompt(f"p{i}", ATTRIBUTES, phase, {"abs_log_ratio": [drift], "kl": [drift]})
    with database.unit_of_work() as session:
        evidence.record(session, lease, collector.evidence())


def act(api, promotion, action, **body):
    return api.post(f"/v1/promotions/{promotion['id']}/{action}", json=body, headers=ANN)


def test_a_promotion_from_start_to_shadow(registered, app):
    promotion = start(registered)
    assert (promotion["stage"], promotion["status"], promotion["active"]) == ("offline_ci", "measuring", True)
    assert (promotion["contract"], promotion["started_by"]) == ("tiny@1.0.0", "ann")
    assert promotion["bound"]["inference_build"] != promotion["bound"]["known_good_build"]
    measure(app)
    path = f"/v1/promotions/{promotion['id']}"
    now = registered.get(path).json()
    assert (now["stage"], now["version"], now["attempt"]) == ("shadow", 2, 2)
    assert registered.get("/v1/promotions").json()["items"] == [now], "list and get agree"
    (shard,) = registered.get(f"{path}/evidence").json()["items"]
    assert (shard["kind"], shard["stale"]) == ("shard", False)
    raw = registered.get(f"{path}/evidence/{shard['digest']}")
    assert Evidence.model_validate_json(raw.content).digest == shard["digest"]
    (judgement,) = registered.get(f"{path}/verdicts").json()["items"]
    assert (judgement["converged"], judgement["step"], judgement["attempt"]) == (True, 0, 1)
    assert {"clause", "slice", "phase", "verdict", "observed", "limit", "n", "interval", "reason"} <= set(
        judgement["verdicts"][0]
    )
    history = registered.get(f"{path}/transitions").json()["items"]
    assert [row["event_type"] for row in history] == ["start", "judged"]
    assert [row["version"] for row in history] == [1, 2]
    assert Promotion.model_validate(history[-1]["state"]).stage == "shadow"


def test_a_violation_freezes_in_plain_words(registered, app):
    promotion = start(registered)
    measure(app, drift=5.0)
    now = registered.get(f"/v1/promotions/{promotion['id']}").json()
    assert now["status"] in ("frozen", "fallen_back")
    assert "violat" in now["reason"]


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("freeze", {"reason": "look at it"}, "frozen"),
        ("abort", {}, "aborted"),
        ("abort", {"reason": "no"}, "aborted"),
        ("retry", {}, "measuring"),
    ],
)
def test_what_people_decide(registered, action, body, status):
    promotion = start(registered)
    answer = act(registered, promotion, action, **body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == status
    entry = registered.get("/v1/audit", params={"subject": f"promotion/{promotion['id']}"}).json()["items"][0]
    assert (entry["actor"], entry["action"]) == ("ann", f"promotion.{action}")


def test_freeze_and_resume(registered):
    promotion = start(registered)
    act(registered, promotion, "freeze", reason="look")
    answer = act(registered, promotion, "resume", reason="looked")
    assert (answer.json()["status"], answer.json()["attempt"]) == ("measuring", 2)


def test_an_override_names_its_verdict(registered, app):
    promotion = start(registered)
    measure(app, prompts=3)
    undecided = registered.get(f"/v1/promotions/{promotion['id']}").json()["undecided"]
    wrong = act(registered, promotion, "override", evidence_digest="sha256:0", reason="x")
    assert wrong.status_code == 409
    right = act(registered, promotion, "override", evidence_digest=undecided, reason="seen by eye")
    assert (right.json()["stage"], right.json()["passed"][0]["overridden_by"]) == ("shadow", "ann")


def test_what_the_state_does_not_allow_is_409_with_what_it_does(registered):
    promotion = start(registered)
    answer = act(registered, promotion, "approve")
    assert answer.status_code == 409
    problem = answer.json()
    assert problem["type"].endswith("illegal-transition")
    assert "abort" in problem["allowed"]
    assert registered.get(f"/v1/promotions/{promotion['id']}").json()["version"] == 1


@pytest.mark.parametrize("action", ["freeze", "resume", "override"])
def test_a_reason_is_asked_for(registered, action):
    promotion = start(registered)
    assert act(registered, promotion, action).status_code == 422
    assert act(registered, promotion, action, reason="").status_code == 422


def test_superseding_and_refusing(registered):
    first = start(registered)
    answer = registered.post("/v1/promotions", json={**ORDER, "inference": OTHER, "on_active": "refuse"})
    assert answer.status_code == 409
    assert answer.json()["promotion"] == first["id"]
    start(registered, inference=OTHER)
    assert registered.get(f"/v1/promotions/{first['id']}").json()["status"] == "superseded"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"deployment": "nope"}, 404),
        ({"suite": "nope"}, 422),
        ({"contract": "tiny"}, 422),
        ({"inference": STEADY}, 422),
        ({"on_active": "ignore"}, 422),
        ({"surprise": 1}, 422),
    ],
)
def test_a_start_that_cannot_be(registered, change, status):
    answer = registered.post("/v1/promotions", json={**ORDER, **change})
    assert answer.status_code == status, answer.text
    assert registered.get("/v1/promotions").json()["items"] == []


@pytest.mark.parametrize(
    "path", ["", "/jobs", "/waiting", "/evidence", "/verdicts", "/transitions", "/evidence/sha256:0"]
)
def test_unknown_promotions(registered, path):
    assert registered.get(f"/v1/promotions/nope{path}").status_code == 404
    assert registered.post("/v1/promotions/nope/abort", json={}).status_code == 404


def test_pages_of_promotions(registered):
    ids = [start(registered, inference=(CANDIDATE, OTHER)[i % 2])["id"] for i in range(5)]
    seen, cursor = [], {}
    while True:
        page = registered.get("/v1/promotions", params={"limit": 2, **cursor}).json()
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = {"before": page["next"]}
    assert seen == ids[::-1]
    active = registered.get("/v1/promotions", params={"active": True}).json()["items"]
    assert [item["id"] for item in active] == [ids[-1]]
    assert registered.get("/v1/promotions", params={"deployment": "other"}).json()["items"] == []
    assert registered.get("/v1/promotions", params={"limit": 0}).status_code == 422


def test_routing_has_its_version_as_etag(registered, app):
    path = f"/v1/deployments/{TARGET}/routing"
    first = registered.get(path)
    assert (first.json()["version"], first.headers["etag"]) == (1, '"1"')
    same = registered.get(path, headers={"if-none-match": '"1"'})
    assert (same.status_code, same.content) == (304, b"")
    start(registered)
    measure(app)
    newer = registered.get(path, headers={"if-none-match": '"1"'})
    assert newer.status_code == 200
    assert newer.json()["mode"] == "shadow"
    assert newer.headers["etag"] == f'"{newer.json()["version"]}"'
    assert registered.get("/v1/deployments/nope/routing").status_code == 404


def test_metrics_count_promotions(registered, app):
    start(registered)
    scheduler.tick(app.state.database)
    text = registered.get("/metrics").text
    assert 'kc_promotions{stage="offline_ci",status="measuring"} 1.0' in text
    assert 'kc_jobs{queue="evaluate",state="queued"} 1.0' in text
    assert "kc_outbox_pending 1.0" in text


def test_the_audit_trail_in_pages(registered):
    first = registered.get("/v1/audit", params={"limit": 2}).json()
    assert [entry["action"] for entry in first["items"]] == ["deployment.registered", "suite.registered"]
    rest = registered.get("/v1/audit", params={"before": first["next"]}).json()
    assert rest["next"] is None
    assert rest["items"][-1]["action"] == "contract.registered"
    assert json.dumps(rest)


@pytest.mark.parametrize("actor", ["", "two words", "x" * 201, "caf\xe9"])
def test_an_actor_is_a_word(registered, actor):
    headers = {"x-kc-actor": actor.encode("latin-1")}
    assert registered.post("/v1/promotions", json=ORDER, headers=headers).status_code == 422


def test_a_promotion_says_what_its_contract_loosened(registered):
    assert start(registered)["comparison"] is None
    looser = CONTRACT.replace("lte: 0.1}", "lte: 0.2}", 1).replace("1.0.0", "1.1.0")
    assert registered.post("/v1/contracts", content=looser, headers=YAML).status_code == 201
    promotion = start(registered, contract="tiny@1.1.0")
    told = {
        "against": "tiny@1.0.0",
        "loosened": True,
        "changes": [
            {"part": "clause N1", "direction": "loosened", "details": ["limit lte 0.1 nats → lte 0.2 nats"]},
        ],
    }
    assert promotion["comparison"] == told
    assert registered.get(f"/v1/promotions/{promotion['id']}").json()["comparison"] == told


def test_a_fallback_that_is_the_candidate_is_refused_at_the_start(registered):
    text = CONTRACT.replace(f"fallback: {{build: {STEADY}}}", f"fallback: {{build: {CANDIDATE}}}")
    text = text.replace("1.0.0", "1.1.0")
    assert registered.post("/v1/contracts", content=text, headers=YAML).status_code == 201
    answer = registered.post("/v1/promotions", json={**ORDER, "contract": "tiny@1.1.0"}, headers=ANN)
    assert answer.status_code == 422
    (only,) = answer.json()["diagnostics"]
    assert (only["file"], only["code"]) == ("tiny@1.1.0", "fallback-is-candidate")
    assert text.splitlines()[only["line"] - 1].startswith("fallback:")
    assert registered.get("/v1/promotions").json()["items"] == []


def test_how_far_an_evaluation_is(registered, app):
    promotion = start(registered)
    path = f"/v1/promotions/{promotion['id']}"
    with app.state.database.unit_of_work() as session:
        lease = jobs.lease_next(session, "worker")
        jobs.renew(session, lease, progress=0.5, doing="2 of 4 prompts")
    (job,) = registered.get(f"{path}/jobs").json()["items"]
    assert (job["state"], job["stage"], job["progress"]) == ("leased", "offline_ci", 0.5)
    assert (job["doing"], job["leases"], job["error"]) == ("2 of 4 prompts", 1, None)


def test_what_waits_for_an_evaluation(registered, app):
    promotion = start(registered)
    measure(app)
    answer = registered.get(f"/v1/promotions/{promotion['id']}/waiting").json()
    assert answer == {"requests": 0, "dual_evaluated": 0, "min_prompts": PROMPTS}
