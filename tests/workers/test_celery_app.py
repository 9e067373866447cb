import pytest

pytest.importorskip("celery")

from app.services.database import Settings
from app.services.specs import EVALUATE
from workers import celery_app


@pytest.fixture
def celery(tmp_path):
    return celery_app.create_celery(Settings(home=tmp_path))


def test_the_task_has_the_name_the_app_sends(celery):
    assert EVALUATE in celery.tasks


def test_messages_are_json_acknowledged_late_and_taken_one_by_one(celery):
    assert celery.conf.accept_content == ["json"]
    assert celery.conf.task_acks_late
    assert celery.conf.worker_prefetch_multiplier == 1
    assert celery.conf.worker_pool == "solo"


def test_a_message_leads_to_the_lease_and_a_second_one_to_nothing(celery, monkeypatch):
    leases, done = ["lease"], []
    monkeypatch.setattr(celery_app, "next_lease", lambda database, owner: leases.pop() if leases else None)
    monkeypatch.setattr(celery_app, "run_job", lambda database, lease, artifacts: done.append(lease))
    for _ in range(2):
        celery.tasks[EVALUATE](7)
    assert done == ["lease"]
