import json
from pathlib import Path

from rollart_hpc.sandbox.apptainer import call_profile, command_line


def test_the_command_line():
    words = command_line(
        "/usr/bin/apptainer",
        Path("/images/abc/root"),
        Path("/tmp/rollart-sandboxes-x/y/layer.img"),
        Path("/tmp/rollart-sandboxes-x/y/calls.json"),
        [("/usr", "/usr"), ("/stage/1", "/home/me/venv")],
        {"PATH": "/usr/bin:/bin", "ODD": "a, b=c"},
        [b"/bin/sh", b"-c", b"echo $0"],
    )
    assert words == [
        "/usr/bin/apptainer",
        "--silent",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-eval",
        "--no-init",
        "--no-home",
        "--no-privs",
        "--no-umask",
        "--no-mount",
        "tmp,home,cwd,sys,bind-paths",
        "--net",
        "--network",
        "none",
        "--dns",
        "127.0.0.1",
        "--hostname",
        "sandbox",
        "--scratch",
        "/dev/shm",
        "--security",
        "seccomp:/tmp/rollart-sandboxes-x/y/calls.json",
        "--overlay",
        "/tmp/rollart-sandboxes-x/y/layer.img",
        "--bind",
        "/usr:/usr:ro",
        "--bind",
        "/stage/1:/home/me/venv:ro",
        "--pwd",
        "/",
        "/images/abc/root",
        "/usr/bin/env",
        "-i",
        "PATH=/usr/bin:/bin",
        "ODD=a, b=c",
        b"/bin/sh",
        b"-c",
        b"echo $0",
    ]


def test_the_profile_of_system_calls_leaves_four_families_of_sockets():
    rules = json.loads(call_profile())["syscalls"]
    refused = [rule["args"][0] for rule in rules if rule["names"] == ["socket"]]
    equal = {argument["value"] for argument in refused if argument["op"] == "SCMP_CMP_EQ"}
    assert set(range(17)) - equal == {1, 2, 10, 16}
    assert [argument["value"] for argument in refused if argument["op"] == "SCMP_CMP_GT"] == [16]
