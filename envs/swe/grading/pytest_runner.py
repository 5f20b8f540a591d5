"""Runs pytest in the grading sandbox and reports what it saw; executed there as a script, never imported here.

Two processes. The *reporter* imports pytest before anything of the repository can be imported, forks, and alone knows
the nonce that authenticates the report: it reads it after the fork, from a pipe that the child no longer has, and no
process of the same user may look into it. The *child* runs the tests, and with them whatever the patch brings. What the
child prints goes to a file that nobody parses; its results come once, after pytest has returned.

The reporter believes them only if the child's exit status fits them, if tests of its own with random names, which must
fail, did fail, and if no file that steers tests changed while they ran.

Old interpreters run this too: nothing here needs more than Python 3.6 and pytest 4.
"""

# Old interpreters and small images: os.path everywhere, nothing imported that a test run does not need.
# ruff: noqa: PTH113, PTH118, PTH123, PTH202

import ctypes
import json
import os
import random
import re
import select
import signal
import struct
import sys
import tempfile
import traceback
import unittest

_DUMPABLE = 4
_LOG_TAIL_BYTES = 6000
_CANARIES = """import unittest

def test_{0}():
    assert {1} + 1 == {2}

def test_{3}():
    assert {1} == {2}

def test_{4}():
    raise ValueError({1})

class Test{0}(unittest.TestCase):
    def test_{5}(self):
        self.assertEqual({1}, {2})
"""
_INI_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_INI_SECTION = re.compile(r"^\[(tool\.pytest(\.ini_options)?|pytest|tool:pytest)\]", re.MULTILINE)


def main():
    """Reads the specification, runs the tests, prints one line: the nonce and the report as JSON."""
    spec = json.loads(_read(struct.unpack(">I", _read(4))[0]).decode())
    try:
        import pytest  # noqa: PLC0415 - without it the report says so
    except ImportError as error:
        _print(_read(32).decode(), {"no_pytest": str(error)})
        return
    os.chdir(spec["directory"])
    before = _stamps(spec["watched"])
    scratch = tempfile.mkdtemp()
    canaries = [_write_canaries(scratch), _write_canaries(scratch)]
    results, child_results = os.pipe()
    child_go, go = os.pipe()
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    log = os.path.join(scratch, "log")
    child = os.fork()
    if not child:
        for descriptor in (results, go, wake, signalled):
            os.close(descriptor)
        _run_tests(pytest, spec, [canary[0] for canary in canaries], log, child_results, child_go)
    os.close(child_results)
    os.close(child_go)
    # From here on no other process of this user can read this one's memory or take its descriptors.
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
    nonce = _read(32).decode()
    os.write(go, b"g")
    text, status = _collect(child, results, wake)
    _print(nonce, _report(text, status, canaries, before, spec, log))


def _run_tests(pytest, spec, canaries, log, results, go):
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.read(go, 1)
    recorder = _recorder(pytest, {os.path.realpath(path) for path in spec["changed"]})
    sys.path.insert(0, spec["directory"])
    sys.argv = ["pytest"]
    first, last = canaries
    code = int(pytest.main([*_options(spec["directory"]), first, *spec["files"], last], plugins=[recorder]))
    sys.stdout.flush()
    message = json.dumps({"code": code, "statuses": recorder.statuses, "conftests": recorder.conftests}).encode()
    for start in range(0, len(message), 65536):
        os.write(results, message[start : start + 65536])
    os._exit(code)


def _options(directory):
    options = ["-p", "no:cacheprovider", "--rootdir", directory, "--maxfail=0", "--continue-on-collection-errors"]
    for name in _INI_FILES:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                if name.endswith(("pytest.ini", "pytest.toml")) or _INI_SECTION.search(file.read()):
                    return [*options, "-c", path]
    return options


def _recorder(pytest, changed):
    """The plugin that notes how each test ended, bound to what pytest is now, before other code may change it."""
    given_up = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)

    class Recorder:
        def __init__(self):
            self.statuses = {}
            self.conftests = []

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item, call):
            outcome = yield
            report = outcome.get_result()
            self.statuses.setdefault(item.nodeid, []).append([report.when, _status(report, call, given_up, changed)])

        def pytest_sessionfinish(self, session):
            plugins = session.config.pluginmanager.get_plugins()
            files = (getattr(plugin, "__file__", None) or "" for plugin in plugins)
            self.conftests = sorted(file for file in files if file.endswith("conftest.py"))

    return Recorder()


def _status(report, call, given_up, changed):
    error = call.excinfo
    # Code under test that skips or xfails by itself would end every test that calls it without a failure.
    if error is not None and isinstance(error.value, given_up):
        frames = traceback.walk_tb(error.value.__traceback__)
        if any(os.path.realpath(frame.f_code.co_filename) in changed for frame, _ in frames):
            return "FAILED"
    if report.failed:
        return "FAILED" if report.when == "call" else "ERROR"
    if hasattr(report, "wasxfail"):
        return "XFAIL" if report.skipped else "PASSED"
    return "SKIPPED" if report.skipped else "PASSED"


def _write_canaries(scratch):
    """A file of one test that passes and three that fail; returns its path and what must become of them."""
    draw = random.SystemRandom()
    names = [f"{draw.getrandbits(48):012x}" for _ in range(4)]
    number = draw.randrange(1000, 1000000)
    passing, *failing = names
    path = os.path.join(scratch, f"test_{names[0][::-1]}.py")
    with open(path, "w", encoding="ascii") as file:
        file.write(_CANARIES.format(passing, number, number + 1, *failing))
    return path, dict([("test_" + passing, "PASSED")] + [("test_" + name, "FAILED") for name in failing])


def _collect(child, results, wake):
    """What the child wrote before it ended, and how it ended; processes that it left may keep the pipe open."""
    os.set_blocking(results, False)
    text = b""
    while True:
        if wake in select.select([results, wake], [], [])[0]:
            os.read(wake, 512)
        ended, status = os.waitpid(child, os.WNOHANG)
        try:
            while True:
                chunk = os.read(results, 65536)
                if not chunk:
                    if not ended:
                        ended, status = os.waitpid(child, 0)
                    break
                text += chunk
        except BlockingIOError:
            pass
        if ended:
            return text, status


def _report(text, status, canaries, before, spec, log):
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL_BYTES))
        report = {"finished": False, "tampered": "", "statuses": {}, "log": file.read().decode(errors="replace")}
    try:
        told = json.loads(text.decode())
        statuses = {test: _whole(phases) for test, phases in told["statuses"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return report
    exited = os.WIFEXITED(status) and os.WEXITSTATUS(status) == told["code"]
    report["finished"] = exited and told["code"] in (0, 1)
    report["tampered"] = _tampering(statuses, told, canaries, before, spec)
    report["statuses"] = {test: statuses[test] for test in spec["expected"] if test in statuses}
    if any(test.count("[") > test.count("]") for test in spec["expected"]):
        report["statuses"] = statuses
    return report


def _whole(phases):
    """A test's status from those of setup, call and teardown, which must be there in this order, once each."""
    if [phase for phase, _ in phases] not in (["setup", "call", "teardown"], ["setup", "teardown"]):
        return "ERROR"
    ranks = ("PASSED", "XFAIL", "SKIPPED", "FAILED", "ERROR")
    return max((status for _, status in phases), key=ranks.index)


def _tampering(statuses, told, canaries, before, spec):
    """What shows that the results are not those of the tests; empty where nothing does."""
    by_name = {test.split("::")[-1]: status for test, status in statuses.items()}
    if told["code"] != 1 or any(by_name.get(name) != due for _, dues in canaries for name, due in dues.items()):
        return "tests that must fail did not fail"
    changed = _changed(before, _stamps(spec["watched"]))
    if changed:
        return "changed while the tests ran: " + ", ".join(changed[:5])
    known = {os.path.realpath(path) for path in before}
    inside = os.path.realpath(spec["directory"]) + os.sep
    foreign = [path for path in told["conftests"] if os.path.realpath(path).startswith(inside)]
    foreign = [path for path in foreign if os.path.realpath(path) not in known]
    if foreign:
        return "appeared while the tests ran: " + ", ".join(foreign[:5])
    return ""


def _stamps(watched):
    """Identity and time of change of every file that steers tests; no process can set the latter back."""
    pattern = re.compile(watched)
    stamps = {}
    for directory, folders, files in os.walk("."):
        folders[:] = [folder for folder in folders if folder not in (".git", "node_modules", "__pycache__")]
        for name in files:
            path = os.path.join(directory, name)
            if pattern.search(path[2:]):
                entry = os.lstat(path)
                stamps[path] = (entry.st_ino, entry.st_size, entry.st_ctime_ns)
    return stamps


def _changed(before, after):
    return sorted(path for path in before if before[path] != after.get(path))


def _read(size):
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            raise EOFError("the specification ends early")
        data += chunk
    return data


def _print(nonce, report):
    data = ("\n" + nonce + json.dumps(report) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
