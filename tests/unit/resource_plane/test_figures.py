"""The file of figures: whole, sourced, and precise about what it lacks."""

import re
from pathlib import Path

import pytest

from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.figures import FIGURES_FILE, known_figures, read_figures


def test_the_phases_of_the_paper_s_iteration_are_all_of_it():
    iteration = known_figures().paper.iteration
    assert iteration.generation + iteration.training + iteration.environment_reset + iteration.rest == pytest.approx(1)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        pytest.param("tflops = 989\n", r"hardware\.H800\.tflops is missing; add it", id="of hardware"),
        pytest.param("layers = 36\n", r"models\.Qwen3-8B\.layers is missing; add it", id="of a model"),
        pytest.param("over_areal = 1.31\n", r"paper\.time_to_score\.over_areal is missing; add it", id="of the paper"),
        pytest.param("source = .*\n", r"hardware\.H800\.source is missing; add it", id="a source"),
    ],
)
def test_a_missing_figure_is_named(tmp_path: Path, line: str, complaint: str):
    path = tmp_path / "figures.toml"
    path.write_text(re.sub(line, "", FIGURES_FILE.read_text(), count=1))
    with pytest.raises(ConfigError, match=complaint):
        read_figures(path)


def test_figures_of_what_is_not_known_are_refused_with_what_is():
    with pytest.raises(ConfigError, match="no figures of a model 'Qwen3-9B'; known are Qwen3-8B, Qwen3-14B, Qwen3-32B"):
        known_figures().model("Qwen3-9B")
    with pytest.raises(ConfigError, match="no figures of a network 'carrier pigeon'; known are InfiniBand"):
        known_figures().network("carrier pigeon")
    assert known_figures().network("InfiniBand").gb_s == 50
