"""What all sections of a configuration have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_NAME = r"^[A-Za-z][A-Za-z0-9_-]*$"
_ENTRY_POINT = r"^[\w.]+:[\w.]+$"
_LINE = r"^[^\x00-\x1f\x7f]*$"
PATTERNS_IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        _NAME: "a name that begins with a letter and goes on with letters, digits, _ and -",
        _ENTRY_POINT: "module:attribute, such as my_package.my_module:MyClass",
        _LINE: "one printable line, without line breaks and tabs",
    }
)
"""What a text of each pattern is to a user."""

PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=_NAME, max_length=64)]
EntryPoint = Annotated[str, Field(pattern=_ENTRY_POINT)]
Line = Annotated[str, Field(min_length=1, pattern=_LINE)]


class Section(BaseModel):
    """Base of all sections: unknown keys forbidden, frozen, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)
