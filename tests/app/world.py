"""A whole control plane in a directory: real SQLite file, fake clock, measurements made up on demand."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.db import migrate, repositories
from app.db.session import Database
from app.services import evidence, jobs, promotions, registry, routing, scheduler, traffic
from app.services.binding import Order
from app.services.traffic import Served
from contracts.collect import Collector
from contracts.document import read
from contracts.model import Phase, Stage
from contracts.routing import choose
from contracts.slices import Attributes

TRAIN, STEADY, CANDIDATE, OTHER = "train-fp32", "serving-fp32", "serving-bf16", "serving-fp16"
BUILDS = {
    TRAIN: "torch:dtype=float32",
    STEADY: "torch-serving:dtype=float32",
    CANDIDATE: "torch-serving:dtype=bfloat16",
    OTHER: "torch-serving:dtype=bfloat16,chunk=64",
}
ENDPOINTS = {STEADY: "http://127.0.0.1:9001", CANDIDATE: "http://127.0.0.1:9002"}
TARGET = "coder"
PROMPTS = 40
CONTRACT = f"""\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata: {{name: tiny, version: 1.0.0}}
pair:
  train: {{engine: torch, dtype: float32}}
  inference: {{engine: torch-serving, dtype: bfloat16}}
slices:
  all: {{}}
  python: {{where: {{language: python}}}}
clauses:
  - {{id: N1, family: numerical, metric: abs_log_ratio, limit: {{lte: 0.1}}, kind: soft, exceedance: 0.5,
     slices: [all, python], level: L2}}
  - {{id: S1, family: statistical, metric: kl, limit: {{lte: 0.1}}, kind: soft, exceedance: 0.5,
     slices: [all], level: L3}}
  - {{id: O1, family: observability, metric: telemetry_age, limit: {{lte: 300 s}}, kind: hard,
     slices: [all], level: L2, stages: [shadow, canary, full]}}
escalation:
  L1: [log]
  L2: [log, freeze]
  L3: [log, fallback, freeze, page]
fallback: {{build: {STEADY}}}
stages:
  offline_ci: {{min_prompts: {PROMPTS}, deadline: 1h}}
  shadow: {{min_prompts: {PROMPTS}, deadline: 6h}}
  canary: {{steps: [0.5, 0.75], min_prompts: {PROMPTS}, deadline: 12h}}
  full: {{min_prompts: {PROMPTS}, approval: required, approval_ttl: 24h, audit_rate: 1.0}}
"""
ATTRIBUTES = Attributes(prompt_tokens=8, language="python")
GOOD, BAD = 0.001, 5.0


class Clock:
    """The database's clock as tests turn it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 12, 1, 12, tzinfo=UTC)

    def __call__(self, _session: object) -> datetime:
        return self.time

    def advance(self, **by: float) -> None:
        self.time += timedelta(**by)


def write_checkpoint(root: Path) -> Path:
    """The smallest directory that is a checkpoint."""
    root.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (root / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    files = {
        "config.json": {"vocab_size": 8, "bos_token_id": 1, "eos_token_id": [2]},
        "tokenizer.json": {
            "model": {"vocab": {"a": 0, "b": 3}},
            "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}],
        },
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
    }
    for name, value in files.items():
        (root / name).write_text(json.dumps(value))
    return root


def write_suite(path: Path, prompts: int = PROMPTS) -> Path:
    lines = [
        json.dumps({"id": f"p{i}", "prompt": f"def f{i}():", "language": "python"}) for i in range(prompts)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


class World:
    """Everything registered; promotions are started and measured through the real services."""

    def __init__(self, folder: Path, *, contract: str = CONTRACT) -> None:
        self.folder = folder
        self.clock = Clock()
        self.database = Database(f"sqlite:///{folder / 'kc.db'}", clock=self.clock)
        self.contract = contract
        self.requests = 0
        migrate.upgrade(self.database.engine)

    def register(self) -> None:
        checkpoint = write_checkpoint(self.folder / "model")
        suite = write_suite(self.folder / "suite.jsonl")
        with self.database.unit_of_work() as session:
            registry.register_contract(session, self.contract.encode())
            registry.register_checkpoint(session, "model", checkpoint)
            for name, spec in BUILDS.items():
                registry.register_build(session, name, spec)
            registry.register_suite(session, "suite", suite)
            registry.register_deployment(session, TARGET, STEADY, ENDPOINTS)

    def start(self, inference: str = CANDIDATE, **options: object) -> str:
        order = Order(
            deployment=TARGET,
            contract="tiny@1.0.0",
            checkpoint="model",
            train=TRAIN,
            inference=inference,
            suite="suite",
        )
        with self.database.unit_of_work() as session:
            return promotions.start(session, order, **options).id

    def state(self, promotion_id):
        with self.database.reading() as session:
            return promotions.get(session, promotion_id).state

    def place(self, promotion_id):
        state = self.state(promotion_id)
        return str(state.stage), state.step, str(state.status)

    def apply(self, promotion_id, event):
        with self.database.unit_of_work() as session:
            return promotions.apply(session, promotion_id, event)

    def table(self):
        with self.database.reading() as session:
            return routing.current(session, TARGET)

    def deployment(self):
        from app.db.models import DeploymentRow

        with self.database.reading() as session:
            return repositories.registered(session, DeploymentRow, TARGET)

    def lease(self, owner: str = "worker"):
        with self.database.unit_of_work() as session:
            return jobs.lease_next(session, owner)

    def measured(self, lease, drift: float = GOOD, *, kl: float | None = None, prompts: int | None = None):
        """Evidence with the same drift on every decision of every prompt of the job."""
        spec = lease.spec
        contract = read(spec.contract.encode()).contract
        collector = Collector(contract, spec.provenance, lease.shard)
        names = [f"p{i}" for i in range(PROMPTS if prompts is None else prompts)]
        if spec.requests is not None:
            names = [request.id for request in spec.requests if request.dual]
        for name in names:
            for phase in Phase:
                values = {"abs_log_ratio": [drift] * 4, "kl": [drift if kl is None else kl] * 4}
                collector.add_prompt(name, ATTRIBUTES, phase, values)
        return collector.evidence()

    def report(self, lease, drift: float = GOOD, **options):
        measured = self.measured(lease, drift, **options)
        with self.database.unit_of_work() as session:
            return evidence.record(session, lease, measured)

    def evaluate(self, drift: float = GOOD, **options):
        """Lease what waits and report it; the transition it led to."""
        lease = self.lease()
        assert lease is not None, "nothing waits to be measured"
        return self.report(lease, drift, **options)

    def serve(self, count: int) -> None:
        """Users send requests; the gateway records what it does with each."""
        table = self.table()
        with self.database.unit_of_work() as session:
            for _ in range(count):
                self.requests += 1
                name = f"r{self.requests}"
                route = choose(table, name, ATTRIBUTES)
                answers = [(route.serve, route.role, route.dual and route.mirror is None)]
                if route.mirror is not None:
                    answers.append((route.mirror, "mirror", route.dual))
                for build, role, dual in answers:
                    traffic.record(session, _served(table, name, build, role, dual))

    def tick(self) -> int:
        return scheduler.tick(self.database)

    def live(self, drift: float = GOOD, requests: int = 160, **options):
        """Traffic, a tick that takes it up, and its evaluation."""
        self.serve(requests)
        self.tick()
        return self.evaluate(drift, **options)


def _served(table, name, build, role, dual):
    return Served(
        request_id=name,
        deployment=TARGET,
        served_by=build,
        role=role,
        prompt_ids=[1, 0, 3],
        output_ids=[0, 3, 2],
        attributes=ATTRIBUTES,
        latency_s=0.05,
        ttft_s=0.01,
        ok=True,
        dual=dual,
        promotion=table.promotion,
        stage=table.stage,
        step=table.step,
        attempt=table.attempt,
    )


LIVE = (Stage.SHADOW, Stage.CANARY, Stage.FULL)
