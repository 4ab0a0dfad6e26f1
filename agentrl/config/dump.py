"""A configuration as YAML again: what a run really used, fit to be stored and shared.

Invariants
- What was dumped loads to an equal configuration, unless a secret was masked.
- A value whose key or shape says that it is a credential is never written.
"""

from __future__ import annotations

import re

import yaml

from agentrl.config.document import FLOAT_WORD
from agentrl.config.run import RunConfig
from agentrl.types import Json

MASK = "***"

_SECRET_KEY = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|credentials?|auth)$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"""
      (?<![A-Za-z0-9])(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}            # keys of model services and payment services
    | hf_[A-Za-z0-9]{16,}                         # Hugging Face
    | gh[opsur]_[A-Za-z0-9]{16,} | github_pat_\w+ | glpat-[\w-]{16,}
    | AKIA[A-Z0-9]{12,}                           # AWS
    | xox[abprs]-[\w-]{10,}                       # Slack
    | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*           # a signed web token
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----
    """,
    re.VERBOSE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")


class _Dumper(yaml.SafeDumper):
    """Quotes what a reader of YAML 1.1, or our own, would take for something else than text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes these line breaks of Unicode as they are, and reads them as a space
    style = '"' if re.search("[\x85\u2028\u2029\ufeff]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT_WORD, None)
_Dumper.add_representer(str, _represent_text)


def dump_config(config: RunConfig) -> str:
    """Every key with its value, defaults included, secrets masked."""
    data = config.model_dump(mode="json", by_alias=True)
    return yaml.dump(masked(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def masked(value: Json, key: str = "") -> Json:
    """The same value without the texts that look like credentials."""
    match value:
        case dict():
            return {name: masked(inner, str(name)) for name, inner in value.items()}
        case list():
            return [masked(inner, key) for inner in value]
        case str() if value and (_SECRET_KEY.search(key) or _SECRET_VALUE.search(value)):
            return MASK
        case str():
            return _URL_PASSWORD.sub(rf"\1:{MASK}", value)
    return value
