"""Every diagnostic code: what it says, and whether it is an error. Codes are stable names."""

from __future__ import annotations

from typing import Literal

Severity = Literal["error", "warning"]

# What YAML has and a contract has not (contracts.yaml_tree).
READING: dict[str, str] = {
    "too-large": "The file is larger than 1 MiB.",
    "not-utf8": "The file is not UTF-8.",
    "character": "A character YAML does not allow, a NUL, or half a surrogate pair.",
    "tab": "A tab outside quotes and comments.",
    "syntax": "Not YAML.",
    "yaml-version": "A %YAML directive of another version than 1.2.",
    "several-documents": "A second document in the file.",
    "empty": "No document in the file.",
    "not-a-mapping": "The document is not a mapping.",
    "too-complex": "Nested more than 32 deep, or more than 20,000 values.",
    "anchor": "An anchor.",
    "alias": "An alias.",
    "tag": "A tag.",
    "merge-key": "A merge key.",
    "key": "A key that is not a plain word.",
    "duplicate-key": "A key given twice.",
    "no-value": "A key or item without a value.",
}

# Keys and values (contracts.shape).
SHAPE: dict[str, str] = {
    "unknown-key": "A key the language does not have.",
    "missing-key": "A key that must be there.",
    "name": "A name or level that cannot be one.",
    "value": "A value of the wrong kind or out of its range.",
}

# What could never work (contracts.semantics).
MEANING: dict[str, str] = {
    "unknown-metric": "A metric that is not in the registry.",
    "unknown-slice": "A slice the contract does not define.",
    "duplicate-id": "A clause id used twice.",
    "duplicate-item": "A slice, stage or action named twice in one list.",
    "family": "A metric in a clause of another family.",
    "soft": "A soft clause on a metric that has no exceedance.",
    "missing-exceedance": "A soft clause without exceedance.",
    "exceedance": "A hard clause with exceedance.",
    "missing-statistic": "A runtime clause without statistic.",
    "statistic": "A statistic the clause does not take.",
    "per": "per: prompt on a metric without decisions.",
    "missing-aggregate": "per: prompt without aggregate.",
    "aggregate": "An aggregate without per: prompt.",
    "missing-k": "topk_agreement without k.",
    "k": "k on a metric that has none.",
    "bins": "bins on a metric that has none.",
    "relative-to": "relative_to on a metric that is not measured beside a baseline.",
    "phase": "A phase on a metric that is not measured by phase.",
    "unit": "A limit in a unit of another dimension.",
    "impossible-limit": "A limit no value of the metric can keep.",
    "missing-rl": "A metric that needs the rl section.",
    "missing-reward": "A metric that needs the reward section.",
    "slice-all": "A condition on the slice all, which is everything.",
    "unknown-attribute": "A slice condition on an attribute no draw has (error), "
    "or a pair predicate on a field no fingerprint has (warning).",
    "operator": "An operator the attribute does not take.",
    "never-matches": "A slice condition nothing can match.",
    "deadline": "A stage whose deadline is not after its min_duration.",
    "level-without-action": "A level in use that has no action at a stage in use.",
    "missing-fallback": "An L3 clause, or a level that falls back, in a contract without fallback.",
}

# What reads and is refused all the same (contracts.lint): errors.
REFUSED: dict[str, str] = {
    "no-conforming-pair": "A clause that even two identical kernels break, or two that exclude each other.",
    "no-violating-pair": "No clause of the contract can be broken by any pair.",
    "tolerates-all": "A stage that can pass the clause and could not fail it, were every draw beyond.",
    "no-traffic": "A clause on served traffic at offline_ci, where there is none.",
    "beyond-clip": "A log-ratio limit that leaves the policy update no clip range [R4].",
    "fallback-is-candidate": "The fallback build matches pair.inference: it is the candidate.",
    "guard-is-candidate": "The guard build matches pair.inference: it is the candidate.",
}

# What reads and is unwise (contracts.lint): warnings.
UNWISE: dict[str, str] = {
    "too-few-prompts": "min_prompts on which the clause can never be certified.",
    "no-exceedance-allowed": "min_prompts on which the clause is certified only with no exceedance at all.",
    "vacuous-bound": "A logit limit whose bound on total variation says nothing [B1], [B9].",
    "weighted-alone": "A logit_weighted clause without a bound on the oscillation, which [B9] needs.",
    "cannot-fail": "A limit no value of the metric can break.",
    "direction": "A limit on the harmless side.",
    "implied": "A clause that another clause implies.",
    "beyond-budget": "A log-ratio limit beyond the kernel's share of the clip range [R4].",
    "unbounded-ratio": "An rl section, and no clause that limits the log-ratio it budgets.",
    "truncated-sampling": "Sampling that cuts the support, and clauses on log-probabilities [S8].",
    "empty-stage": "A stage at which no clause is judged.",
    "missing-guard": "A level that guards slices, and no guard build.",
    "milder-than-level": "Actions milder than the level's own, which apply all the same.",
    "unobserved-slice": "A slice served to users on which no observability clause watches the measurement.",
    "unused-slice": "A slice in no clause.",
    "empty-predicate": "A side of the pair that any build is.",
}

CODES: dict[str, str] = READING | SHAPE | MEANING | REFUSED | UNWISE


def severity(code: str) -> Severity:
    """The severity lint gives `code`; what stops a document from reading is always an error."""
    return "warning" if code in UNWISE or code == "unknown-attribute" else "error"
