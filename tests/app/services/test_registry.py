import pytest
from sqlalchemy import func, select

from app.db.models import AuditRow, Base, CheckpointRow, ContractRow, DeploymentRow, KernelBuildRow, SuiteRow
from app.errors import ContentConflict, Contention, ContractRefused, NotFound, Unprocessable
from app.services import registry
from tests.app.world import BUILDS, CANDIDATE, CONTRACT, STEADY, TARGET, write_checkpoint, write_suite


def count(world, kind):
    with world.database.reading() as session:
        return session.execute(select(func.count()).select_from(kind)).scalar_one()


def everything(world):
    with world.database.reading() as session:
        return {
            t.name: session.execute(select(func.count()).select_from(t)).scalar_one()
            for t in Base.metadata.sorted_tables
        }


def register(world, how, *args, **options):
    with world.database.unit_of_work() as session:
        return how(session, *args, **options)


def test_registering_the_same_again_is_a_no_op(world):
    before = everything(world)
    row, created = register(world, registry.register_contract, CONTRACT.encode())
    assert (row.name, row.version, created) == ("tiny", "1.0.0", False)
    assert register(world, registry.register_checkpoint, "model", world.folder / "model")[1] is False
    assert register(world, registry.register_build, CANDIDATE, BUILDS[CANDIDATE])[1] is False
    assert register(world, registry.register_suite, "suite", world.folder / "suite.jsonl")[1] is False
    from tests.app.world import ENDPOINTS

    assert register(world, registry.register_deployment, TARGET, STEADY, ENDPOINTS)[1] is False
    assert everything(world) == before


def test_comments_and_order_are_no_other_content(world):
    text = "# a comment\n" + CONTRACT
    row, created = register(world, registry.register_contract, text.encode())
    assert not created
    assert row.yaml == CONTRACT, "what was published stays as written"


def test_the_same_name_and_version_with_other_content_is_a_conflict(world):
    changed = CONTRACT.replace("lte: 0.1}", "lte: 0.2}", 1)
    with pytest.raises(ContentConflict, match=r"raise metadata\.version"):
        register(world, registry.register_contract, changed.encode())
    assert count(world, ContractRow) == 1
    assert register(world, registry.register_contract, changed.replace("1.0.0", "1.1.0").encode())[1]


def test_a_bad_contract_says_where(world):
    bad = CONTRACT.replace("metric: kl", "metric: kk")
    with pytest.raises(ContractRefused) as refused:
        register(world, registry.register_contract, bad.encode(), file="c.yaml")
    (diagnostic,) = refused.value.extra["diagnostics"]
    assert diagnostic["file"] == "c.yaml"
    assert bad.splitlines()[diagnostic["line"] - 1][diagnostic["column"] - 1 :].startswith("kk")
    assert "kk" in diagnostic["message"]
    assert count(world, ContractRow) == 1


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 129])
def test_names_are_names(world, name):
    with pytest.raises(Unprocessable, match="is not a name"):
        register(world, registry.register_build, name, BUILDS[CANDIDATE])


def test_an_unknown_build_key_names_the_nearest(world):
    with pytest.raises(Unprocessable, match="dtype"):
        register(world, registry.register_build, "b", "torch:dtyp=float32")
    assert count(world, KernelBuildRow) == len(BUILDS)


def test_a_build_is_the_same_however_it_is_written(world):
    row, created = register(
        world, registry.register_build, "other", {"engine": "torch-serving", "chunk": 64, "dtype": "bfloat16"}
    )
    assert created
    assert not register(world, registry.register_build, "other", "torch-serving:dtype=bfloat16,chunk=64")[1]
    assert row.spec == "torch-serving:chunk=64,dtype=bfloat16"


def test_another_build_under_a_name_is_a_conflict(world):
    with pytest.raises(ContentConflict):
        register(world, registry.register_build, CANDIDATE, "torch-serving:dtype=float16")


def test_a_missing_weight_file_registers_nothing(world):
    root = write_checkpoint(world.folder / "broken")
    (root / "model.safetensors").unlink()
    with pytest.raises(Unprocessable, match="safetensors"):
        register(world, registry.register_checkpoint, "broken", root)
    assert count(world, CheckpointRow) == 1


def test_changed_weights_are_another_checkpoint(world):
    weights = world.folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(ContentConflict):
        register(world, registry.register_checkpoint, "model", world.folder / "model")


def test_the_same_checkpoint_elsewhere_is_followed(world):
    moved = (world.folder / "model").rename(world.folder / "moved")
    row, created = register(world, registry.register_checkpoint, "model", moved)
    assert not created
    assert row.path == str(moved)
    with world.database.reading() as session:
        assert session.scalars(select(AuditRow).where(AuditRow.action == "checkpoint.moved")).one()


def test_a_bad_suite_names_its_lines(world):
    path = world.folder / "bad.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}\n{"id": "b"}\n')
    with pytest.raises(Unprocessable, match=r"bad\.jsonl:2:.*\n.*bad\.jsonl:3:"):
        register(world, registry.register_suite, "bad", path)
    with pytest.raises(ContentConflict):
        register(world, registry.register_suite, "suite", write_suite(world.folder / "more.jsonl", 41))
    assert count(world, SuiteRow) == 1


def test_a_deployment_needs_registered_builds_and_real_addresses(world):
    with pytest.raises(Unprocessable, match="no kernel build"):
        register(world, registry.register_deployment, "d", "unknown", {})
    with pytest.raises(Unprocessable, match="no kernel build"):
        register(world, registry.register_deployment, "d", STEADY, {"unknown": "http://127.0.0.1:1"})
    for url in ("file:///etc/passwd", "127.0.0.1:80", "http://", ""):
        with pytest.raises(Unprocessable, match="URL"):
            register(world, registry.register_deployment, "d", STEADY, {STEADY: url})
    assert count(world, DeploymentRow) == 1


def test_endpoints_may_change_and_known_good_may_not(world):
    row, created = register(
        world, registry.register_deployment, TARGET, STEADY, {STEADY: "http://127.0.0.1:1"}
    )
    assert (created, row.endpoints) == (False, {STEADY: "http://127.0.0.1:1"})
    with pytest.raises(ContentConflict, match="by promotion"):
        register(world, registry.register_deployment, TARGET, CANDIDATE, {})


def test_a_new_deployment_serves_its_known_good_build(world):
    table = world.table()
    assert (table.version, table.known_good, table.candidate) == (1, STEADY, None)


def test_two_who_register_at_once(world, monkeypatch):
    from app.db import repositories

    monkeypatch.setattr(repositories, "named", lambda *a: None)
    with pytest.raises(Contention):
        register(world, registry.register_build, CANDIDATE, BUILDS[CANDIDATE])


def test_what_is_not_there(world):
    with world.database.reading() as session:
        with pytest.raises(NotFound):
            registry.get(session, SuiteRow, "x")
        with pytest.raises(NotFound):
            registry.get_contract(session, "tiny", "2.0.0")
        assert registry.get_contract(session, "tiny", "1.0.0").yaml == CONTRACT


def test_every_registration_is_audited(world):
    with world.database.reading() as session:
        actions = session.scalars(select(AuditRow.action).order_by(AuditRow.seq)).all()
    assert actions == [
        "contract.registered",
        "checkpoint.registered",
        *["kernel_build.registered"] * len(BUILDS),
        "suite.registered",
        "deployment.registered",
    ]
