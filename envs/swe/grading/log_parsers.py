"""What test runners print, as (test, status) pairs; by the names that SWE-bench gives its parsers.

A test may be told of more than once; who reads the pairs decides what that means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

START_MARKER = ">>>>> Start Test Output"
END_MARKER = ">>>>> End Test Output"
EXIT_CODE_MARKER = ">>>>> Test Exit Code"
STATUSES = ("PASSED", "XFAIL", "SKIPPED", "FAILED", "ERROR")
"""From best to worst."""

Pairs = Iterator[tuple[str, str]]
_COUNT = re.compile(r"\[\d+\]")
_COLOUR = re.compile(r"\x1b?\[\d+m")
_CONTROL = dict.fromkeys(range(32))
_PARAMETERS = re.compile(r"(.*?)\[(.*)\]")
_SYMPY_FAILURE = re.compile(r"^_+ (.*)\.py:(.*) _+$", re.MULTILINE)
_DJANGO_LATE_OK = re.compile(
    r"^(.*?) \.\.\. (?:Testing against Django installed in .*? silenced\)\.|Internal Server Error: /.*/"
    r"|System check identified no issues \(0 silenced\)\.?)\nok$",
    re.MULTILINE,
)
_DJANGO_ENDINGS = {" ... ok": "PASSED", " ... OK": "PASSED", " ... FAIL": "FAILED", " ... ERROR": "ERROR"}


def parse_pytest(log: str) -> Pairs:
    """Lines of pytest's short summary: ``PASSED file::test``."""
    for line in log.split("\n"):
        if line.startswith(STATUSES):
            status, *words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
            if words and status in STATUSES and not _counts_skips(status, words[0]):
                yield words[0], status


def parse_pytest_options(log: str) -> Pairs:
    """As pytest's, but of a parameter that is an absolute path the last part counts."""
    for test, status in parse_pytest(log):
        match = _PARAMETERS.search(test)
        if match and match[2].startswith("/") and not match[2].startswith("//") and "*" not in match[2]:
            yield f"{match[1]}[/{match[2].split('/')[-1]}]", status
        else:
            yield test, status


def parse_pytest_v2(log: str) -> Pairs:
    """As pytest's, coloured, with names that hold spaces, and of old versions, which print the status last."""
    for coloured in log.split("\n"):
        line = _COLOUR.sub("", coloured).translate(_CONTROL)
        words = (line.split(" - ")[0] if line.startswith("FAILED") else line).split()
        if len(words) < 2:
            continue
        if words[0] in STATUSES:
            if not _counts_skips(words[0], words[1]):
                yield " ".join(words[1:]), words[0]
        elif words[-1] in STATUSES:
            yield " ".join(words[:-1]), words[-1]


def parse_matplotlib(log: str) -> Pairs:
    """As pytest's, with mouse buttons as the numbers that they once were."""
    return parse_pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def parse_seaborn(log: str) -> Pairs:
    """Verbose pytest: ``test PASSED [ 10%]``, failures from the summary."""
    for line in log.split("\n"):
        words = line.split()
        if len(words) > 1 and words[0] in {"FAILED", "PASSED"}:
            yield words[1], words[0]
        elif len(words) > 2 and words[1] == "PASSED":
            yield words[0], "PASSED"


def parse_django(log: str) -> Pairs:
    """Django's runner, that is unittest's at verbosity 2: ``test (case) ... ok``, where the end may come late."""
    running = None
    for raw in log.split("\n"):
        line = raw.strip()
        if "--version is equivalent to version" in line:
            yield "--version is equivalent to version", "PASSED"
        if " ... " in line:
            running = line.split(" ... ")[0]
        line = line.replace(" ...  OK", " ... OK")
        for ending, status in _DJANGO_ENDINGS.items():
            if line.endswith(ending):
                test = line.removesuffix(ending)
                if test.startswith("Applying sites.0002_alter_domain_unique...test_no_migrations"):
                    test = test.split("...", 1)[1].strip()
                yield test, status
        if " ... skipped" in line:
            yield line.split(" ... skipped")[0], "SKIPPED"
        for start, status in (("FAIL:", "FAILED"), ("ERROR:", "ERROR")):
            if line.startswith(start) and len(line.split()) > 1:
                yield line.split()[1], status
        if line.startswith("ok") and running is not None:
            yield running, "PASSED"
    for match in _DJANGO_LATE_OK.finditer(log):
        yield match[1], "PASSED"


def parse_sympy(log: str) -> Pairs:
    """Sympy's own runner: ``test_name ok``, failures by the headings of their tracebacks too."""
    for match in _SYMPY_FAILURE.finditer(log):
        yield f"{match[1]}.py:{match[2]}", "FAILED"
    endings = {"E": "ERROR", "F": "FAILED", "ok": "PASSED"}
    for line in log.split("\n"):
        words = line.split()
        if len(words) > 1 and words[0].startswith("test_") and words[-1] in endings:
            yield words[0], endings[words[-1]]


def _counts_skips(status: str, word: str) -> bool:
    """``SKIPPED [3] file:line: reason`` counts skipped tests and names none."""
    return status == "SKIPPED" and bool(_COUNT.fullmatch(word))


_PYTEST = ("pytest", "astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray")
LOG_PARSERS: dict[str, Callable[[str], Pairs]] = {
    **{f"parse_log_{name}": parse_pytest for name in _PYTEST},
    **{f"parse_log_{name}": parse_pytest_options for name in ("pytest_options", "pydicom", "requests", "pylint")},
    **{f"parse_log_{name}": parse_pytest_v2 for name in ("pytest_v2", "astropy", "scikit", "sphinx")},
    "parse_log_matplotlib": parse_matplotlib,
    "parse_log_seaborn": parse_seaborn,
    "parse_log_django": parse_django,
    "parse_log_sympy": parse_sympy,
}
