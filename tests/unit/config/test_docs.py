"""docs/configuration.md has every key of the run's config and of the site profile with its default, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.slurm import (
    DEFAULT_RESOURCES,
    ComponentOptions,
    ContainerSection,
    ResourcesSection,
    SiteProfile,
)

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
HEADING = re.compile(r"^## `\[([\w.]+)\]`")
ROW = re.compile(r"^\| `(\w+)` \| (\S.*?) \|")
NESTED: dict[str, type[BaseModel]] = {
    "pools.NAME.slurm": ComponentOptions,
    "pools.NAME.slurm.resources.ROLE": ResourcesSection,
    "pools.NAME.slurm.container": ContainerSection,
}
SITE_CHAPTER = "## The site profile"


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)


def chapters() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for name, field in RunConfig.model_fields.items():
        for model in sections_in(field.annotation):
            found[f"{name}.NAME" if get_origin(field.annotation) is dict else name] = model
    return {**found, **NESTED, SITE_CHAPTER: SiteProfile}


def reachable(model: type[BaseModel]) -> set[type[BaseModel]]:
    inner = {section for field in model.model_fields.values() for section in sections_in(field.annotation)}
    return inner.union(*(reachable(section) for section in inner))


def shown_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if isinstance(default, BaseModel):
        default = default.model_dump(exclude_defaults=True)
    return "none" if default is None else f"`{json.dumps(default)}`"


def own_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Those that are not documented in the chapter of a base."""
    inherited = {name for base in model.__bases__ if issubclass(base, BaseModel) for name in base.model_fields}
    return {name: field for name, field in model.model_fields.items() if name not in inherited}


def rows_of_page() -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = HEADING.match(line)
            section = heading[1] if heading else line
        elif section and (row := ROW.match(line)):
            rows.setdefault(section, {})[row[1]] = row[2]
    return rows


def test_every_key_is_documented_with_its_default():
    documented = rows_of_page()
    for name, model in chapters().items():
        expected = {key: shown_default(field) for key, field in own_fields(model).items()}
        assert documented.get(name) == expected, f"docs/configuration.md, {name}"


def test_every_section_has_a_chapter():
    headings = {found[1] for line in PAGE.read_text().splitlines() if (found := HEADING.match(line))}
    assert headings == {*chapters(), "affinity", "serverless"} - {SITE_CHAPTER}
    assert set(chapters().values()) == reachable(RunConfig) | {SiteProfile}
    assert {heading.split(".")[0] for heading in headings} == set(RunConfig.model_fields)


def test_the_resources_of_every_role_are_documented():
    row = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) \| (\S.*?) \|$", re.MULTILINE)
    documented = {role: (int(cpus), float(memory), gpus) for role, cpus, memory, gpus in row.findall(PAGE.read_text())}
    assert documented == {
        role: (share.cpus, share.mem_gb, "`generation.tensor_parallel`" if share.gpus is None else str(share.gpus))
        for role, share in DEFAULT_RESOURCES.items()
    }
