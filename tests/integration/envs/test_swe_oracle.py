"""SWE-bench's own grading agrees with ours; where its package is installed (``pip install swebench==5.0.2``)."""

from pathlib import Path

import pytest

from rollart_hpc.envs.swe.grading.evaluate import evaluate
from rollart_hpc.envs.swe.instance import Instance, tiny_rows
from rollart_hpc.envs.swe.work_tree import open_work_tree
from tests.integration.envs.repairs import with_script

grading = pytest.importorskip("swebench.harness.grading", exc_type=ImportError)


def log_of(instance: Instance, patch: str) -> str:
    """What the instance's script prints with a patch."""
    with open_work_tree(instance) as sandbox:
        sandbox.write_file("/tmp/model.patch", patch.encode())
        sandbox.write_file("/tmp/eval.sh", instance.eval_script.encode())
        return sandbox.run("git apply --allow-empty /tmp/model.patch && bash /tmp/eval.sh", timeout_s=60).output


@pytest.mark.parametrize("row", tiny_rows(), ids=lambda row: row["instance_id"])
def test_swe_bench_says_the_same_of_gold_and_of_nothing(row: dict[str, object], tmp_path: Path) -> None:
    from swebench.types import TestSpec

    instance = Instance.from_row(with_script(row))
    spec = TestSpec(
        instance_id=instance.instance_id,
        image="none",
        eval_script_list=[],
        repo=str(row["repo"]),
        version="1",
        FAIL_TO_PASS=list(instance.fail_to_pass),
        PASS_TO_PASS=list(instance.pass_to_pass),
        log_parser=instance.log_parser,
        eval_type="pass_and_fail",
    )
    for patch, resolved in ((instance.patch, True), ("", False)):
        (tmp_path / "log").write_text(log_of(instance, patch))
        prediction = {"instance_id": instance.instance_id, "model_patch": patch, "model_name_or_path": "test"}
        report = grading.get_eval_report(spec, prediction, str(tmp_path / "log"), include_tests_status=True)
        told = report[instance.instance_id]
        assert told["patch_successfully_applied"]
        assert told["resolved"] is resolved
        if patch:
            ours = [evaluate(graded, patch.encode(), timeout_s=60) for graded in (instance, Instance.from_row(row))]
            assert [verdict.resolved for verdict in ours] == [told["resolved"]] * 2
        else:
            assert len(told["tests_status"]["FAIL_TO_PASS"]["failure"]) == len(instance.fail_to_pass)
            assert len(told["tests_status"]["PASS_TO_PASS"]["success"]) == len(instance.pass_to_pass)
