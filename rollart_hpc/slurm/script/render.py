"""The batch script of a run: everything that the job needs but the interpreter, so that plain sbatch runs it.

The script holds the resolved config and hands it to the leader on standard input. The same config, interpreter and
directory give the same bytes. The template only substitutes; every decision is made here and in `batch_options`.
"""

from __future__ import annotations

import json
import shlex
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.slurm.script.allocation import components
from rollart_hpc.slurm.script.batch_options import option_lines
from rollart_hpc.slurm.script.template_check import missing

TEMPLATE = Path(__file__).parents[2] / "sbatch_templates" / "het_job.sh.j2"
_MARKER = "END_OF_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One component, as the template sees it."""

    name: str
    options: list[str]
    """What stands behind ``#SBATCH``, a line each."""


def render(config: RunConfig, *, python: str, directory: Path) -> str:
    """The batch script of a resolved config (see `rollart_hpc.config.site.apply_site`).

    Args:
        config: the run.
        python: the interpreter on the nodes, where ``slurm.python`` names none.
        directory: where the job starts, absolute; the run's directory is relative to it.

    Raises:
        ConfigError: the components or an option cannot be asked for, or the user's template is wrong.
    """
    run_directory = directory / (config.run.directory or Path("runs") / config.run.name).expanduser()
    config = config.model_copy(update={"run": config.run.model_copy(update={"directory": run_directory})})
    parts = components(config)
    lines = option_lines(config, parts, directory)
    text = _embedded(config)
    values = {
        "name": config.run.name,
        "components": [Block(name=part.name, options=options) for part, options in zip(parts, lines, strict=True)],
        "run_directory": shlex.quote(str(run_directory)),
        "setup": config.slurm.setup,
        "python": shlex.quote(str(Path(config.slurm.python or python).expanduser())),
        "config": text,
        "marker": _marker(text),
    }
    template = TEMPLATE if config.slurm.template is None else config.slurm.template.expanduser().absolute()
    script = _fill(template, values)
    if faults := list(missing(script, lines, text)):
        where = f"slurm.template = {str(template)!r}"
        lacking = [f"{where}: the script lacks {fault}" for fault in faults]
        raise ConfigError("\n".join([*lacking, f"{where}: begin with a copy of {TEMPLATE}"]))
    return script


def _embedded(config: RunConfig) -> str:
    """The config as JSON, without defaults, in ASCII: it is read under any locale."""
    text = json.dumps(config.model_dump(mode="json", exclude_defaults=True), indent=2)
    if parse_config(json.loads(text)) == config:
        return text
    names = ", ".join(f"tasks.{name}" for name, task in config.tasks.items() if task.environment_args)
    raise ConfigError(
        f"environment_args of {names}: a date, infinity or nan does not pass through the batch script, which holds the "
        "config as JSON; write it as text or as a number"
    )


def _marker(text: str) -> str:
    marker = _MARKER
    while marker in text:
        marker += "_"
    return marker


def _fill(template: Path, values: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    try:
        return environment.get_template(template.name).render(values)
    except jinja2.TemplateNotFound as error:
        missing = template if error.name == template.name else template.parent / str(error.name)
        raise ConfigError(f"slurm.template = {str(template)!r}: {missing} is no readable file") from error
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{error.filename or template}:{error.lineno}: {error.message}") from error
    except Exception as error:  # a template is the user's code and may raise anything
        names = ", ".join(sorted(values))
        raise ConfigError(
            f"{_origin(error, template)}: {error}; names in a template are {names}; a component has name and options"
        ) from error


def _origin(error: Exception, template: Path) -> str:
    """File and line of the template in which it went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).parent == template.parent]
    return f"{inside[-1].filename}:{inside[-1].lineno}" if inside else str(template)
