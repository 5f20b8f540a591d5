"""Names of files that decide how tests run, as regular expressions over paths; read outside and inside the sandbox."""

WATCHED = (
    r"(^|/)(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|(site|user)customize\.py"
    r"|test_[^/]*\.py|[^/]*_test\.py|tests\.py|[^/]+\.pth|entry_points\.txt)$"
    r"|(^|/)tests/(.*/)?[^/]*\.py$"
)
"""What must not change while tests run, either."""
PROTECTED = (
    WATCHED + r"|(^|/)(tests|__pycache__|\.git|\.hg|(site|user)customize|[^/]*\.(egg-info|dist-info))(/|$)"
    r"|(^|/)(\.git(attributes|modules)|\.coveragerc|[^/]+\.(py[co]|so|pyd))$"
)
