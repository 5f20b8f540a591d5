"""Rows are checked before anything is opened."""

import json
from typing import Any

import pytest

from rollart_hpc.envs.swe.instance import Instance, published_image, tiny_rows

ROW = tiny_rows()[0]
SCRIPT = ": '>>>>> Start Test Output'\ntrue\n: '>>>>> End Test Output'\n"


def test_tests_are_lists_or_their_json_text() -> None:
    text = ROW | {field: json.dumps(ROW[field]) for field in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    assert Instance.from_row(text) == Instance.from_row(ROW)
    assert Instance.from_row(ROW).test_files == ("tests/test_bucket.py",)


def test_a_row_of_swe_bench_runs_in_its_published_image() -> None:
    row = {key: value for key, value in ROW.items() if key != "snapshot"}
    row |= {"instance_id": "Django__django-1", "hints_text": "", "version": "4.0", "difficulty": None}
    instance = Instance.from_row(row)
    assert instance.image == published_image("Django__django-1")
    assert instance.image == "swebench/sweb.eval.x86_64.django_1776_django-1:latest"
    assert (instance.directory, instance.snapshot) == ("/testbed", None)
    assert Instance.from_row(row | {"image": "mine:1"}).image == "mine:1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patch": None}, "no texts"),
        ({"image": 1, "eval_script": ["pytest"]}, r"\['image', 'eval_script'\] are no texts"),
        ({"FAIL_TO_PASS": "[nonsense"}, "no JSON"),
        ({"PASS_TO_PASS": [1]}, "list of test names"),
        ({"FAIL_TO_PASS": []}, "nothing shows"),
        ({"snapshot": {"path": "x"}}, "sha256"),
        ({"snapshot": "x.tar"}, "sha256"),
        ({"snapshot": ROW["snapshot"] | {"dest": "testbed"}}, "absolute"),
        ({"eval_type": "fail_only"}, "fail_only"),
        ({"eval_script": SCRIPT, "log_parser": "mine"}, "parse_log_pytest"),
        ({"eval_script": "pytest", "log_parser": "parse_log_pytest"}, "Start Test Output"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Instance.from_row(ROW | change)


def test_a_missing_field_is_named_with_all_that_are_needed() -> None:
    with pytest.raises(ValueError, match=r"lacks \['test_patch'\].*problem_statement"):
        Instance.from_row({key: value for key, value in ROW.items() if key != "test_patch"})


def test_a_snapshot_is_the_one_of_the_row_or_none() -> None:
    snapshot = Instance.from_row(ROW | {"snapshot": ROW["snapshot"] | {"sha256": "0" * 64}}).snapshot
    assert snapshot
    with pytest.raises(ValueError, match="pack it again"):
        snapshot.read()
    missing = Instance.from_row(ROW | {"snapshot": ROW["snapshot"] | {"path": "missing.tar"}}).snapshot
    assert missing
    with pytest.raises(ValueError, match=r"no snapshot .*missing\.tar"):
        missing.read()
