"""What commands see of a sandbox, and what comes back of them."""

import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from rollart_hpc.config.node import Runtime, SandboxSection
from rollart_hpc.errors import NoSandboxError, SandboxError
from rollart_hpc.sandbox import Sandbox, available_runtime, open_sandbox
from rollart_hpc.sandbox import output as output_of_commands
from rollart_hpc.sandbox.shell_sandbox import ShellSandbox
from rollart_hpc.sandbox.unisolated import UnisolatedEnclosure


@pytest.fixture(params=["host", "image"])
def sandbox(request: pytest.FixtureRequest, image_root: Path, small: SandboxSection):
    root = image_root if request.param == "image" else None
    with open_sandbox(root=root, directory="/testbed", environment={"ASKED": "yes"}, settings=small) as sandbox:
        yield sandbox


def output(sandbox: Sandbox, command: str) -> str:
    return sandbox.run(command, timeout_s=20).output


def test_this_node_isolates(runtime: Runtime):
    assert available_runtime(SandboxSection(runtime=runtime)) == runtime


def test_writes_stay_and_commands_do_not(sandbox: Sandbox):
    assert output(sandbox, "cd /tmp; A=1; echo kept > /testbed/file; echo kept > ~/file; echo kept > /tmp/file") == ""
    assert output(sandbox, "pwd; echo $A$ASKED; cat file ~/file /tmp/file") == "/testbed\nyes\n" + 3 * "kept\n"


def test_output_is_in_order_and_exit_codes_are_those_of_a_shell(sandbox: Sandbox):
    result = sandbox.run("for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 7", timeout_s=20)
    assert result.output == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"
    assert (result.exit_code, result.ending) == (7, "exit")
    killed = sandbox.run("kill -SEGV $$", timeout_s=20)
    assert (killed.exit_code, killed.ending, killed.output) == (128 + signal.SIGSEGV, "exit", "")


def test_input_environment_and_directory_of_one_command(sandbox: Sandbox):
    result = sandbox.run(
        "pwd; cat; echo $ASKED $MORE",
        timeout_s=20,
        directory="/made/here",
        environment={"MORE": "a b", "ASKED": "again"},
        stdin=b"x" * 300_000 + b"\n",
    )
    assert result.output.startswith("/made/here\nxxx")
    assert result.output.endswith("x\nagain a b\n")
    assert sandbox.run("exec 0<&-; echo done", timeout_s=20, stdin=b"x" * 300_000).output == "done\n"


def test_of_much_output_the_beginning_and_the_end_are_kept(sandbox: Sandbox):
    text = output(sandbox, "echo first; for i in {1..40000}; do echo line $i; done; echo last")
    assert text.startswith("first\nline 1\n")
    assert text.endswith("line 40000\nlast\n")
    assert len(text) < 65 << 10
    assert "bytes of output were dropped" in text


def test_a_command_ends_at_its_deadline_and_keeps_what_it_said(sandbox: Sandbox):
    result = sandbox.run("trap '' TERM INT HUP; echo begun; exec >/dev/null 2>&1; sleep 60; sleep 60", timeout_s=0.5)
    assert (result.output, result.exit_code, result.ending) == ("begun\n", 137, "timeout")
    assert 0.5 <= result.seconds < 10


def test_files_are_written_and_read_where_commands_see_them(sandbox: Sandbox):
    data = bytes(range(256)) * 4000
    sandbox.write_file("/deep/below/it's", data)
    sandbox.write_file("relative", b"")
    assert sandbox.read_file("/deep/below/it's") == data
    assert sandbox.read_file("/deep/below/it's", max_bytes=10) == data[:10]
    assert output(sandbox, "cat /deep/below/* | head -c 3; stat -c %s relative") == "\0\1\0020\n"
    output(sandbox, "ln -s /etc/shadow link; ln -s /proc/1/root/etc/shadow other; mkdir folder")
    for path in ("/missing", "link", "other", "folder", "/deep/below/it's/x"):
        with pytest.raises(FileNotFoundError):
            sandbox.read_file(path)
    with pytest.raises(SandboxError, match="No space"):
        sandbox.write_file("/big", bytes(25 << 20))


def test_a_file_is_not_written_outside_by_way_of_a_link(sandbox: Sandbox, tmp_path: Path):
    output(sandbox, f"mkdir -p {tmp_path}; ln -s {tmp_path} out")
    sandbox.write_file("out/file", b"inside")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo a\0b", "ab\n"),
        ("echo '\ud800\xe9'", "?é\n"),
        ("", ""),
        (": " + "x" * 500_000 + "; echo long", "long\n"),
        ("echo '" + "y" * 5_000_000 + "'", "the command is too long for this machine\n"),
        (")", "bash: -c: line 1: syntax error near unexpected token `)'\nbash: -c: line 1: `)'\n"),
    ],
    ids=["NUL", "surrogate", "nothing", "long", "too long", "no shell text"],
)
def test_any_text_is_a_command(sandbox: Sandbox, command: str, expected: str):
    assert output(sandbox, command) == expected


def test_any_text_is_a_variable_and_a_path(sandbox: Sandbox):
    result = sandbox.run("echo $ODD", timeout_s=20, environment={"ODD": "a\0b \ud800 \u00e9"})
    assert result.output == "ab ? \u00e9\n"
    sandbox.write_file("odd \0\ud800\n'$(ls)", b"kept")
    assert sandbox.read_file("odd ?\n'$(ls)") == b"kept"


@pytest.mark.parametrize("breaking", ["rm /bin /bin/sh", "rm /lib64 /lib/ld-*", "chmod 000 /"])
def test_a_command_that_ruins_the_root_has_not_lost_the_sandbox(breaking: str, small: SandboxSection):
    with open_sandbox(settings=small) as sandbox:
        sandbox.run(breaking, timeout_s=20)
        for _ in range(2):
            broken = sandbox.run("echo", timeout_s=20)
            assert (broken.exit_code, broken.ending) == (127, "exit")
            assert broken.output.startswith(("bwrap: ", "FATAL: ", "env: "))


def test_a_root_that_never_had_a_working_shell_is_no_fault_of_a_command(tmp_path: Path, small: SandboxSection):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").write_bytes(b"no program")
    (tmp_path / "bin/sh").chmod(0o755)
    tmp_path.chmod(0o755)
    with open_sandbox(root=tmp_path, settings=small) as sandbox, pytest.raises(SandboxError, match=r"/bin/(sh|env)"):
        sandbox.run("echo", timeout_s=20)


def test_what_the_policy_breaks_is_its_own(sandbox: Sandbox):
    output(sandbox, "rm -rf /testbed; echo > /testbed")
    broken = sandbox.run("pwd", timeout_s=20)
    assert (broken.exit_code, broken.output) == (126, "no directory /testbed\n")
    assert output(sandbox, "rm -f /testbed") == "no directory /testbed\n"
    assert sandbox.run("rm -f /testbed; pwd", timeout_s=20, directory="/tmp").output == "/tmp\n"
    assert output(sandbox, "pwd") == "/testbed\n"


def test_after_its_close_nothing_runs(small: SandboxSection):
    sandbox = open_sandbox(settings=small)
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run("true", timeout_s=5)


def test_the_python_of_this_process_runs(small: SandboxSection):
    with open_sandbox(settings=small) as sandbox:
        assert output(sandbox, "python -c 'import numpy, sys; print(sys.executable)'").endswith("/bin/python\n")


def test_signals_that_the_worker_blocks_reach_commands(small: SandboxSection):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    ignored = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with open_sandbox(settings=small) as sandbox:
            masks = output(sandbox, "grep -hoP 'Sig(Blk|Ign):\\s*\\K.*' /proc/self/status").split()
            # The C library's own, 32 and 33, cannot be told.
            assert [int(mask, 16) & 0x7FFFFFFF for mask in masks] == [0, 0]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGUSR2, ignored)


def test_a_sandbox_outlives_the_thread_that_opened_it(small: SandboxSection):
    opened: list[Sandbox] = []
    thread = threading.Thread(target=lambda: opened.append(open_sandbox(settings=small)))
    thread.start()
    thread.join()
    with opened[0] as sandbox:
        assert output(sandbox, "echo alive") == "alive\n"


def test_a_root_that_cannot_be_used_is_an_error_that_says_why(tmp_path: Path, small: SandboxSection):
    with pytest.raises(SandboxError, match="missing"):
        open_sandbox(root=tmp_path / "missing", settings=small)
    with pytest.raises(SandboxError, match="no shell"):
        open_sandbox(root=tmp_path, settings=small)


def test_unisolated_commands_have_a_deadline_and_leave_no_process(small: SandboxSection, tmp_path: Path):
    open_sandbox(settings=small).close()
    with ShellSandbox(UnisolatedEnclosure(None, small), directory="/testbed", settings=small) as sandbox:
        assert output(sandbox, "(setsid sh -c 'echo $$ > pid; exec sleep 600' &); while [ ! -s pid ]; do :; done") == ""
        pid = int(sandbox.read_file("/testbed/pid"))
        assert not Path(f"/proc/{pid}").exists()
        assert sandbox.run("sleep 600", timeout_s=0.2).ending == "timeout"
        assert sandbox.run("python -c 'a = bytearray(250 << 20)\nwhile 1: 0'", timeout_s=20).ending == "memory"
        assert output(sandbox, f"[ -d {tmp_path} ] && echo seen") == "seen\n"
        directory = Path(output(sandbox, "pwd").strip())
        assert directory.is_relative_to(Path(output(sandbox, "echo $HOME").strip()))
    assert not directory.exists()
    with pytest.raises(NoSandboxError, match="root"):
        UnisolatedEnclosure(Path(os.sep), small)


def everybody_has_fuse() -> bool:
    device = Path("/dev/fuse")
    return shutil.which("fuse-overlayfs") is not None and device.exists() and bool(device.stat().st_mode & 2)


@pytest.mark.skipif(not everybody_has_fuse(), reason="needs fuse-overlayfs, and /dev/fuse for all users")
def test_without_attributes_on_tmpfs_a_removed_directory_is_made_again(
    image_root: Path, small: SandboxSection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rollart_hpc.sandbox.overlay.has_user_attributes", lambda: False)
    with open_sandbox(root=image_root, directory="/testbed", settings=small) as sandbox:
        assert output(sandbox, "rm -r src; mkdir src; ls src; echo new > src/b.txt; cat src/*") == "new\n"
        assert sandbox.run("cat /dev/zero > /full", timeout_s=20).ending == "disk"
    assert (image_root / "testbed/src/a.txt").read_text() == "lower\n"


def test_output_without_end_is_taken_at_a_pace_and_output_with_an_end_to_it(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    burst, rate = 1 << 20, 1 << 18
    monkeypatch.setattr(output_of_commands, "_BURST", burst)
    monkeypatch.setattr(output_of_commands, "_BYTES_PER_S", rate)
    endless = "line=$(printf %04096d 0); while :; do echo $line; done"
    result = sandbox.run(endless, timeout_s=1.0)
    assert result.ending == "timeout"
    found = re.search(r"(\d+) bytes of output were dropped", result.output)
    pipes = 2 << 20
    assert found is not None
    assert burst < int(found[1]) < burst + rate * result.seconds + pipes
    assert output(sandbox, f"({endless}) | head -c 1500000; echo end").endswith("end\n")
