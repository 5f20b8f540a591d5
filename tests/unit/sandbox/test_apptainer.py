from pathlib import Path

from rollart_hpc.sandbox.apptainer import command_line


def test_the_command_line():
    words = command_line(
        "/usr/bin/apptainer",
        Path("/images/abc/root"),
        Path("/tmp/rollart-sandboxes-x/y/layer.img"),
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
        "--no-home",
        "--no-privs",
        "--no-umask",
        "--net",
        "--network",
        "none",
        "--hostname",
        "sandbox",
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
