import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from scheduler.codec import from_dict, to_dict, to_json
from scheduler.decisions import Decision, Duty, Outcome, RequeueReason
from scheduler.events import Event, FailureKind, Role, Stage, ToolStatus

_SAMPLES: dict[Any, Any] = {
    float: 0.1 + 0.2,
    int: 7,
    str: "naïve \N{SNOWMAN}",
    bool: True,
    int | None: None,
    Role: Role.GENRM,
    ToolStatus: ToolStatus.TIMEOUT,
    FailureKind: FailureKind.ENV,
    RequeueReason: RequeueReason.WORKER_LOST,
    Stage: Stage.WARM,
    Outcome: Outcome.RETIRED,
    Duty: Duty(role=Role.GENRM, accelerators=frozenset({"gpu1", "gpu0"})),
    tuple[str, ...]: ("w1", "w0"),
    Mapping[str, Any]: {"lengths": {"weight": 0.1 + 0.2, "nodes": [[["a", 1], [1.5]]]}},
    tuple[int, ...]: (3, 4),
}


def sample(cls: type) -> Any:
    hints = get_type_hints(cls)
    return cls(**{field.name: _SAMPLES[hints[field.name]] for field in fields(cls)})


@pytest.mark.parametrize("cls", [*get_args(Event), *get_args(Decision)])
def test_every_kind_survives_json(cls: type) -> None:
    value = sample(cls)
    back = from_dict(json.loads(to_json(value)))
    assert back == value
    assert type(back) is cls
    assert to_json(back) == to_json(value)
    assert [type(getattr(back, f.name)) for f in fields(cls)] == [
        type(getattr(value, f.name)) for f in fields(cls)
    ]


def test_foreign_types_and_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown event"):
        from_dict({"type": "Teleported", "t": 0.0})
    tick = to_dict(sample(get_args(Event)[0]))
    with pytest.raises(ValueError, match="no field"):
        from_dict({**tick, "mood": "good"})
