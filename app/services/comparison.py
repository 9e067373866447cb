"""What a promotion's contract promises beside the one it takes the place of."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.models import ContractRow
from contracts.compare import Comparison, compare
from contracts.model import Contract


def against_accepted(session: Session, deployment: str, row: ContractRow) -> Comparison | None:
    """Compare a contract with the one the deployment's last accepted promotion was held to.

    Where nothing was accepted yet, with the version of the same name registered before it; None
    where there is neither.
    """
    accepted = repositories.last_accepted(session, deployment)
    if accepted is not None:
        old = repositories.contract_by_digest(session, accepted.contract)
    else:
        earlier = [one for one in repositories.contracts(session, row.name) if one.id < row.id]
        old = earlier[-1] if earlier else None
    if old is None:
        return None
    return compare(*(Contract.model_validate_json(one.json) for one in (old, row)))
