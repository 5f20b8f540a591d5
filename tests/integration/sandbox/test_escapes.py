"""What a command may try against the host, and that none of it works; run as the user of the tests, root included."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.config.node import Runtime, SandboxSection
from rollart_hpc.sandbox import Sandbox, open_sandbox

SECRET = "a secret of the run"


class Host:
    """What an escape would reach."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "secret"
        self.file.write_text(SECRET)
        self.victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract_name = f"rollart-test-{os.getpid()}"
        self.abstract.bind(f"\0{self.abstract_name}")
        self.abstract.listen()

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        self.tcp.close()
        self.abstract.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    os.environ["ROLLART_TEST_TOKEN"] = SECRET
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()
    del os.environ["ROLLART_TEST_TOKEN"]


@pytest.fixture(scope="module")
def sandbox(host: Host, runtime: Runtime) -> Iterator[Sandbox]:
    settings = SandboxSection(memory_mb=200, disk_mb=24, max_processes=40, runtime=runtime)
    with open_sandbox(settings=settings) as sandbox:
        yield sandbox


# Each prints ESCAPED when it works. In Python, so that one failure does not hide the next.
ATTEMPTS = {
    "files of the host": """
for path in (HOST_FILE, "/etc/shadow", "/proc/1/root" + HOST_FILE, "/proc/1/cwd/" + HOST_FILE):
    attempt(lambda: open(path).read())
attempt(lambda: open("/etc/hostname").read().strip() != "sandbox" or fail())
attempt(lambda: [name for name in os.listdir("/root") if name != ".pyenv"][0])
attempt(lambda: os.listdir("/home/sandbox")[0])
attempt(lambda: os.listdir(os.path.dirname(HOST_FILE)))
attempt(lambda: [name for name in os.listdir("/tmp") if not (sys.prefix + "/").startswith(f"/tmp/{name}/")][0])
""",
    "chroot": "\nattempt(lambda: os.chroot('/tmp'))\n",
    "processes of the host": """
attempt(lambda: os.kill(VICTIM, 9))
attempt(lambda: open(f"/proc/{VICTIM}/environ").read())
attempt(lambda: libc.ptrace(16, VICTIM, 0, 0) == 0 or fail())
print(len([name for name in os.listdir("/proc") if name.isdigit()]) < 8 or "ESCAPED: sees other processes")
""",
    "environment of the run": """
for directory in ("/proc/1", "/proc/self"):
    print("ESCAPED" if SECRET.encode() in open(f"{directory}/environ", "rb").read() else "")
""",
    "network": """
attempt(lambda: socket.create_connection(("127.0.0.1", PORT), 1))
attempt(lambda: socket.create_connection(("1.1.1.1", 53), 1))
attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + ABSTRACT))
attempt(lambda: socket.socket(40, socket.SOCK_STREAM))  # vsock reaches the host of a virtual machine
attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))
""",
    "mounts": """
for command in ("mount -t tmpfs none /mnt", "mount -o remount,rw /usr", "umount /proc/sys", "mount -t proc none /mnt",
                "unshare --user true", "unshare --net true", "mount -o remount,rw /dev"):
    attempt(lambda: subprocess.run(command, shell=True, check=True, stderr=subprocess.DEVNULL))
""",
    "kernel settings": """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/power/state"):
    attempt(lambda: open(path, "w").write("x"))
attempt(lambda: open("/proc/kmsg").read(1))
attempt(lambda: open("/dev/kmsg").read(1))
""",
    "devices": """
for path in ("/dev/mem", "/dev/vda", "/dev/sda", "/dev/kvm", "/dev/nvidia0"):
    attempt(lambda: open(path, "rb").read(1))
attempt(lambda: os.mknod("/tmp/disk", 0o660 | stat.S_IFBLK, os.makedev(8, 0)))
""",
    "system directories": """
for path in ("/usr/bin/ls", "/usr/new", sys.prefix + "/new", sys.base_prefix + "/new"):
    attempt(lambda: open(path, "a").write("x"))
""",
    "the directory of devices": """
attempt(lambda: open("/dev/new", "a").write("x"))
""",
    "rights": """
attempt(lambda: os.setuid(1))
attempt(lambda: os.setgroups([0]))
attempt(lambda: os.chown("/tmp", 1, 1))
print("ESCAPED" if set(re.search(r"CapEff:\\s*(\\w+)", open("/proc/self/status").read())[1]) != {"0"} else "")
""",
    "memory that no process owns": """
attempt(lambda: os.memfd_create("x"))
attempt(lambda: libc.shmget(0, 1 << 20, 0o1600) >= 0 or fail())
attempt(lambda: libc.syscall(250, 0, -3, 1) >= 0 or fail())
attempt(lambda: libc.syscall(425, 1, 0) >= 0 or fail())
""",
    "descriptors of the run": """
for fd in range(3, 1000):
    attempt(lambda: os.fstat(fd))
""",
}  # fmt: skip

PRELUDE = """
import ctypes, os, re, socket, stat, subprocess, sys
libc = ctypes.CDLL(None)
def fail(): raise OSError
def attempt(function):
    try:
        print("ESCAPED:", function())
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        pass
"""


@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_escape_by(name: str, host: Host, sandbox: Sandbox, runtime: Runtime):
    if runtime == "apptainer" and name == "the directory of devices":
        pytest.skip("apptainer's is a small file system of the command's own")
    leaked = os.open(host.file, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    names = {
        "HOST_FILE": str(host.file),
        "VICTIM": host.victim.pid,
        "PORT": host.tcp.getsockname()[1],
        "ABSTRACT": host.abstract_name,
        "SECRET": SECRET,
    }
    settings = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    try:
        sandbox.write_file("/attempt.py", (PRELUDE + settings + ATTEMPTS[name] + "print('tried')").encode())
        result = sandbox.run("python /attempt.py", timeout_s=20)
    finally:
        os.close(leaked)
    assert result.exit_code == 0, result
    assert result.output.strip().endswith("tried")
    assert "ESCAPED" not in result.output, result.output
    assert host.victim.poll() is None


@pytest.mark.parametrize("directory", ["/etc", "/etc/ssl", str(Path(sys.prefix).parent)])
def test_no_mount_is_led_out_of_the_sandbox_by_a_link(directory: str, small: SandboxSection):
    # The one directory of the node that sandboxes of root can write to; those of users can write to all of the user's.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside, open_sandbox(settings=small) as sandbox:
        Path(outside).chmod(0o777)
        sandbox.run(f"mv {directory} /moved; ln -s /oldroot{outside} {directory}", timeout_s=20)
        assert sandbox.run("python -c 'import ssl; print(1)'", timeout_s=20).output == "1\n"
        assert list(Path(outside).iterdir()) == []


def test_killing_everything_kills_only_the_command(host: Host, sandbox: Sandbox):
    assert "137" in sandbox.run("sleep 60 & kill -9 -1; wait $!; echo $?", timeout_s=20).output.split()
    assert host.victim.poll() is None
    assert sandbox.run("echo alive", timeout_s=5).output == "alive\n"


BOMBS = {
    "processes": "bomb() { bomb | bomb & }; bomb; sleep 60",
    "memory": "for i in 1 2 3 4 5 6; do python -c 'a = bytearray(50 << 20); import time; time.sleep(60)' & done; wait",
    "disk": "dd if=/dev/zero of=/dev/shm/a bs=1M count=16 && dd if=/dev/zero of=/tmp/b bs=1M count=16 && sleep 60",
}


@pytest.mark.parametrize("bound", BOMBS)
def test_a_command_that_passes_the_bound_of(bound: str, small: SandboxSection):
    with open_sandbox(settings=small) as sandbox, open_sandbox(settings=small) as other:
        # apptainer's /dev/shm is beside the layer.
        bomb = BOMBS[bound] if small.runtime == "bubblewrap" else BOMBS[bound].replace("/dev/shm/a", "/tmp/a")
        result = sandbox.run(bomb, timeout_s=30)
        assert (result.ending, result.seconds < 20) == (bound, True), result
        # In time for the bounds to be looked at, which must not keep it from making room.
        assert sandbox.run("sleep 0.3; rm -f /tmp/[ab] /dev/shm/a", timeout_s=20).exit_code == 0
        for untouched in (sandbox, other):
            assert untouched.run("echo fine", timeout_s=5).output == "fine\n"


def test_no_process_outlives_its_command(sandbox: Sandbox):
    mark = f"4711.{os.getpid()}"
    daemons = f"setsid nohup sleep {mark} >/dev/null 2>&1 & (setsid sh -c 'trap \"\" TERM HUP; sleep {mark}' &) ; "
    for _ in range(5):
        assert sandbox.run(4 * daemons + "echo started", timeout_s=20).output == "started\n"
        assert processes_with(mark) == []
    assert sandbox.run(daemons + f"sleep {mark}", timeout_s=0.5).ending == "timeout"
    assert processes_with(mark) == []


def processes_with(mark: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            found.append(str(path))
    return found


def test_a_root_is_shared_and_never_changed(image_root: Path, small: SandboxSection):
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in image_root.rglob("*"))
    with open_sandbox(root=image_root, settings=small) as one, open_sandbox(root=image_root, settings=small) as other:
        changes = (
            "cat /etc/private; echo changed > /testbed/src/a.txt; rm -r /usr/lib64; mkdir /usr/lib64; "
            "echo x > /new; mv /etc/private /root/p"
        )
        assert "of the image's root" in one.run(changes, timeout_s=5).output
        assert other.run("cat /testbed/src/a.txt; ls /new /usr/lib64", timeout_s=5).output.startswith("lower\n")
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in image_root.rglob("*")) == before
