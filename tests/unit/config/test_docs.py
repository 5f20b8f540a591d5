"""docs/configuration.md has every key of the schema with its default, and no other key."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollart_hpc.config.schema import RunConfig

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
HEADING = re.compile(r"^## `\[(\w+)")
ROW = re.compile(r"^\| `(\w+)` \| (\S.*?) \|")


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in RunConfig.model_fields.items():
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                yield name, candidate


def shown_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "none" if field.default is None else f"`{json.dumps(field.default)}`"


def rows_of_page() -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = HEADING.match(line)
            section = heading[1] if heading else ""
        elif section and (row := ROW.match(line)):
            rows.setdefault(section, {})[row[1]] = row[2]
    return rows


def test_every_key_is_documented_with_its_default():
    documented = rows_of_page()
    for name, model in sections():
        expected = {key: shown_default(field) for key, field in model.model_fields.items()}
        assert documented.get(name) == expected, f"docs/configuration.md, [{name}]"


def test_every_section_has_a_chapter():
    headings = {found[1] for line in PAGE.read_text().splitlines() if (found := HEADING.match(line))}
    assert headings == set(RunConfig.model_fields)
