import pytest

from app.errors import ContractRefused, Unprocessable
from app.services import promotions, registry
from app.services.binding import Order
from tests.app.world import BUILDS, CANDIDATE, CONTRACT, ENDPOINTS, OTHER, STEADY, TARGET, TRAIN

LOOSE = CONTRACT.replace(
    "inference: {engine: torch-serving, dtype: bfloat16}", "inference: {engine: torch-serving}"
)


def start(world, contract, version="1.0.1"):
    """Start a promotion of the candidate under this contract, registered as a version of its own."""
    with world.database.unit_of_work() as session:
        registry.register_contract(session, contract.replace("1.0.0", version).encode())
    with world.database.unit_of_work() as session:
        order = Order(TARGET, f"tiny@{version}", "model", TRAIN, CANDIDATE, "suite")
        return promotions.start(session, order)


def served(world, *names):
    with world.database.unit_of_work() as session:
        endpoints = ENDPOINTS | dict.fromkeys(names, "http://127.0.0.1:9009")
        registry.register_deployment(session, TARGET, STEADY, endpoints)


def naming(role, build):
    """The contract with another fallback, or with a guard; and the line that names it."""
    ref = f"{role}: {{build: {build}}}"
    fallback = f"fallback: {{build: {STEADY}}}"
    text = CONTRACT.replace(fallback, ref if role == "fallback" else f"{fallback}\n{ref}")
    return text, text.splitlines().index(ref) + 1


@pytest.mark.parametrize("role", ["fallback", "guard"])
def test_an_unregistered_build_is_refused_with_its_line(world, role):
    text, line = naming(role, "nobody")
    with pytest.raises(
        Unprocessable, match=rf"tiny@1\.0\.1:{line}:\d+: no kernel build is registered as 'nobody'"
    ):
        start(world, text)
    assert world.lease() is None


@pytest.mark.parametrize("role", ["fallback", "guard"])
def test_a_build_that_is_served_nowhere_is_refused(world, role):
    with world.database.unit_of_work() as session:
        registry.register_build(session, "spare", "torch-serving:dtype=float32,chunk=8")
    text, line = naming(role, "spare")
    with pytest.raises(
        Unprocessable, match=rf"tiny@1\.0\.1:{line}:\d+: the {role} 'spare' is not served at coder"
    ):
        start(world, text)
    served(world, "spare")
    assert start(world, text).status == "measuring"


@pytest.mark.parametrize("role", ["fallback", "guard"])
@pytest.mark.parametrize("build", [CANDIDATE, "alias"])
def test_the_candidate_is_no_way_out_of_itself(world, role, build):
    with world.database.unit_of_work() as session:
        registry.register_build(session, "alias", BUILDS[CANDIDATE])
    served(world, "alias")
    text, line = naming(role, build)
    with pytest.raises(ContractRefused, match="is the candidate itself") as refused:
        start(world, text)
    (only,) = refused.value.extra["diagnostics"]
    assert (only["code"], only["file"], only["line"]) == (f"{role}-is-candidate", "tiny@1.0.1", line)


def test_nor_is_a_build_the_contract_takes_for_a_candidate(world):
    served(world, OTHER)
    text, line = naming("fallback", OTHER)
    with pytest.raises(ContractRefused, match=r"it matches pair\.inference") as refused:
        start(world, text)
    assert refused.value.extra["diagnostics"][0]["line"] == line


def test_what_a_spec_leaves_open_matches_nothing(world):
    with world.database.unit_of_work() as session:
        registry.register_build(session, "open", "torch-serving")
    served(world, "open")
    assert start(world, naming("fallback", "open")[0]).status == "measuring"
