"""JSON Schema of contract documents, generated from the model; editors complete and check with it.

The schema says what the reader takes as YAML: durations and limits with units, a bare value for an
equality, a list of actions for every stage. What parts mean together (a soft clause needs an
exceedance, a slice must exist ...) is the reader's alone. `contracts/schema.json` is this, written out.
"""

from __future__ import annotations

import json
from typing import Any

from contracts.metrics import METRICS
from contracts.model import API_VERSION, Contract
from contracts.slices import ATTRIBUTES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ID = "urn:kernel-contracts:schema:v1"


def json_schema() -> dict[str, Any]:
    """The schema as plain values; draft 2020-12."""
    schema = Contract.model_json_schema(mode="validation", by_alias=True)
    for definition in [schema, *schema["$defs"].values()]:
        _tidy(definition)
    definitions = schema["$defs"]
    definitions["Limit"] |= {"minProperties": 1, "maxProperties": 1}
    definitions["Condition"] |= {"minProperties": 1}
    _written(definitions["Condition"], "a value, which must be equal", [_scalar()])
    _written(definitions["LevelActions"], "actions for every stage", [_list_of("Action")])
    _metrics(definitions["Clause"]["properties"]["metric"])
    where = definitions["Slice"]["properties"]["where"]
    where["propertyNames"] = {"enum": [*ATTRIBUTES]}
    head = {"$schema": DIALECT, "$id": ID, "title": f"Kernel contract ({API_VERSION})"}
    return {**head, **{key: value for key, value in schema.items() if key != "title"}}


def text() -> str:
    """The schema as indented JSON, byte for byte what `contracts/schema.json` holds."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(node: Any) -> None:
    """Leave out `null` (what is absent is not written), generated titles, and keywords of no dialect."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
        return
    if not isinstance(node, dict):
        return
    _clean(node)
    for key, value in node.items():
        if key == "properties":
            for one in value.values():  # a property may be called `default` or `title`
                _tidy(one)
        elif key not in ("default", "enum", "const"):
            _tidy(value)


def _clean(node: dict[str, Any]) -> None:
    if isinstance(node.get("title"), str):
        node.pop("title")
    if isinstance(node.get("anyOf"), list):
        options = [one for one in node["anyOf"] if one != {"type": "null"}]
        if "ge" in node:  # a bound on what was read from number or text: only the number can say it
            least = node.pop("ge")
            options = [one | {"minimum": least} if one.get("type") == "number" else one for one in options]
        node["anyOf"] = options
        if len(options) == 1:
            node.pop("anyOf")
            node.update(options[0])
    if "patternProperties" in node:
        node["additionalProperties"] = False
    default = node.get("default", 0)
    if default is None or (isinstance(default, dict) and "type" not in default):
        node.pop("default")  # a section's defaults stand at its own keys


def _written(definition: dict[str, Any], words: str, also: list[dict[str, Any]]) -> None:
    """Turn a definition into a choice of itself and what may be written in its stead."""
    whole = dict(definition)
    definition.clear()
    description = whole.pop("description", "")
    definition.update({"description": f"{description} Or {words}.".strip(), "anyOf": [*also, whole]})


def _scalar() -> dict[str, Any]:
    return {"type": ["string", "number", "boolean"]}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}


def _metrics(node: dict[str, Any]) -> None:
    node.clear()
    node["oneOf"] = [
        {"const": metric.id, "description": f"{metric.symbol}: {metric.summary}"}
        for metric in METRICS.values()
    ]
