"""Environments of other libraries and protocols as environments of this package, one file each.

Nothing is imported here: each file needs a library of its own. `docs/adapters.md` describes them.
"""
