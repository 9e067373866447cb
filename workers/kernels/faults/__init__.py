"""The fault zoo: eighteen kinds of fault that real engines had, as wrappers of a torch kernel.

A contract that lets one of them pass would have let the real one pass. Each is our own rebuild of what
the reports named describe; `FAULTS` says which clause must catch it and which checks are blind to it.
Faults combine: `F9+F13`.
"""

from __future__ import annotations

from workers.kernels.faults.faulty import Faulty, inject
from workers.kernels.faults.models import FaultNotApplicable
from workers.kernels.faults.registry import FAULTS, Expectation, Fault, parse_faults

__all__ = ["FAULTS", "Expectation", "Fault", "FaultNotApplicable", "Faulty", "inject", "parse_faults"]
