"""Errors of the domain; each knows its HTTP status and the slug of its problem type (RFC 9457)."""

from __future__ import annotations

from typing import Any, ClassVar


class DomainError(Exception):
    """Base of everything a caller can do something about.

    `detail` says what is wrong, where, and what to do; `extra` becomes further members of
    the problem document.
    """

    status: ClassVar[int] = 400
    slug: ClassVar[str] = "bad-request"
    title: ClassVar[str] = "The request cannot be served"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class NotFound(DomainError):
    """The thing addressed does not exist."""

    status = 404
    slug = "not-found"
    title = "There is no such thing"


class ContentConflict(DomainError):
    """The name is taken by other content; what is published under a name never changes."""

    status = 409
    slug = "content-conflict"
    title = "The name is taken by other content"


class ActivePromotion(DomainError):
    """The deployment already has an active promotion and the caller asked not to supersede it."""

    status = 409
    slug = "active-promotion"
    title = "Another promotion is active for this deployment"


class IllegalEvent(DomainError):
    """The promotion's state does not allow this; nothing changed."""

    status = 409
    slug = "illegal-transition"
    title = "The promotion's state does not allow this"


class Contention(DomainError):
    """Others kept changing the promotion; nothing changed, trying again is safe."""

    status = 409
    slug = "contention"
    title = "The promotion kept changing"


class LeaseLost(DomainError):
    """The lease expired, was taken over or its job ended; whatever was measured under it is void."""

    status = 409
    slug = "lease-lost"
    title = "The lease is no longer held"


class EvidenceRefused(DomainError):
    """The evidence does not describe the job it was measured for; nothing was stored."""

    status = 422
    slug = "evidence-refused"
    title = "The evidence does not belong to this job"


class Unprocessable(DomainError):
    """What was sent reads, but cannot be registered or started as it is."""

    status = 422
    slug = "unprocessable"
    title = "The content cannot be used"


class ContractRefused(DomainError):
    """The contract document has errors; `diagnostics` in `extra` lists all of them with line and column."""

    status = 422
    slug = "invalid-contract"
    title = "The contract document has errors"


class UnsupportedMediaType(DomainError):
    """The body's media type is not one this route reads."""

    status = 415
    slug = "unsupported-media-type"
    title = "The body's media type is not supported"
