"""The examples that ship are right as far as their text goes; those that a test or the demo trains are listed there."""

from pathlib import Path

import pytest

from rollart_hpc.config.load import load_config
from rollart_hpc.config.site import apply_site, load_site
from rollart_hpc.slurm.script.allocation import components

EXAMPLES = Path(__file__).parents[3] / "examples"
SITE = EXAMPLES / "site.toml"
RUNS = sorted(path for path in EXAMPLES.glob("*.toml") if path != SITE)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_an_example_is_a_config_and_becomes_components_on_the_example_site(path: Path):
    config = apply_site(load_config(path), load_site(SITE))
    parts = {part.hardware: part for part in components(config)}
    assert next(iter(parts)) == "cpu"
    assert {part.options.account for part in parts.values()} == {"rl"}
    assert all(part.gpus > 0 for hardware, part in parts.items() if hardware != "cpu")


def test_the_example_for_a_cluster_uses_its_nodes():
    config = apply_site(load_config(EXAMPLES / "cluster.toml"), load_site(SITE))
    assert {part.name: (part.nodes, part.gpus) for part in components(config)} == {
        "cpu": (4, 0),
        "h800": (4, 6),
        "h20": (2, 8),
    }
