"""Make scenarios/scenario.schema.json from the models: `fedspill schema > scenarios/scenario.schema.json`.

A scenario names it in its first line, so that editors complete and check:

    # yaml-language-server: $schema=scenario.schema.json
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from attacks import ATTACKS, Knowledge
from attacks.interface.options import meanings
from clients.defenses import DEFENSES
from clients.models import MODELS
from simulator.scenario.benchmark import SECTION, BenchmarkConfig
from simulator.scenario.scenario import Scenario

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
ANY_MAPPING: Schema = {"type": "object"}
BESIDE: Schema = {  # keys of a file that are no part of a scenario
    "extends": TEXT | {"description": "another scenario: mappings merge key by key, all else is replaced"},
    "settings": ANY_MAPPING | {"description": "of an experiment of the paper only"},
    "datasets": ANY_MAPPING | {"description": "of an experiment of the paper only: settings by data set"},
    "profiles": ANY_MAPPING | {"description": "of an experiment of the paper only: overrides by profile"},
    "claims": ANY_MAPPING | {"description": "of an experiment of the paper only"},
    "source": TEXT | {"description": "of an experiment of the paper only: where its claims stand"},
}  # fmt: skip


def file_schema() -> Schema:
    """Return the schema of a scenario or a benchmark as it is written: with shorthands and `extends`."""
    schema = Scenario.model_json_schema()
    sections = schema["$defs"]
    own = BenchmarkConfig.model_json_schema()
    sections |= own.pop("$defs", {}) | {"BenchmarkConfig": own}
    schema["properties"] |= {SECTION: {"$ref": "#/$defs/BenchmarkConfig"}, **BESIDE}
    del schema["required"]
    schema["anyOf"] = [{"required": ["name"]}, {"required": ["extends"]}, {"required": ["datasets"]}]
    for section, known in (("AttackConfig", _options(ATTACKS)), ("DefenseConfig", _options(DEFENSES))):
        sections[section] = _by_name(sections[section] | {"required": ["name"]}, known)
        sections[section] = {"anyOf": [TEXT | {"examples": sorted(known)}, sections[section]]}
    networks = {name: options.model_json_schema() for name, options in MODELS.items()}
    sections["ModelConfig"] = _by_name(sections["ModelConfig"], networks)
    sections["StrategyConfig"] = {"anyOf": [TEXT, sections["StrategyConfig"]]}
    fields = {"enum": Knowledge.names()}
    granted: Schema = sections["AdversaryConfig"]["properties"]["knowledge"]
    shapes = [{"type": "array", "items": fields}, {"type": "object", "propertyNames": fields}]
    sections["AdversaryConfig"]["properties"]["knowledge"] = {
        "anyOf": shapes, "description": granted["description"], "default": granted.get("default", {})
    }  # fmt: skip
    for name in ("DataConfig", "ModelConfig", "AttackConfig", "DefenseConfig"):
        sections[name]["description"] = (sections[name].get("description") or "").split("\n\n")[0]
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "title": "fedspill scenario"}


def _options(known: Mapping[str, type]) -> dict[str, Schema]:
    """Return the schema of the options of each attack, or defense, with their meaning."""
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in known.items()}
    for name, kind in known.items():
        for option, meaning in meanings(kind).items():
            schemas[name]["properties"][option]["description"] = meaning
    return schemas


def _by_name(section: Schema, known: Mapping[str, Schema]) -> Schema:
    """Add the options of known names to a section; null takes one back. An unknown name may have any option, and so may
    a section without a name, which the extended file has."""
    shared = section["properties"]
    options = {name: schema.get("properties", {}) for name, schema in known.items()}
    every: Schema = {option: {} for own in options.values() for option in own if option not in shared}
    taken_back: Schema = {option: {"type": "null"} for option in every}
    rules = []
    for name, own in options.items():
        or_null = {option: {"anyOf": [schema, {"type": "null"}]} for option, schema in own.items()}
        named = {"properties": {"name": {"const": name}}, "required": ["name"]}
        rules.append(_rule(named, shared, taken_back | or_null))
    rules.append(_rule({"not": {"required": ["name"]}}, shared, every))
    named = shared | {"name": shared["name"] | {"examples": sorted(known)}}
    return section | {"properties": every | named, "additionalProperties": True, "allOf": rules}


def _rule(where: Schema, shared: Iterable[str], options: Schema) -> Schema:
    return {"if": where, "then": {"properties": options, "propertyNames": {"enum": [*shared, *options]}}}
