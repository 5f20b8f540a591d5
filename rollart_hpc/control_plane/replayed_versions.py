"""Whether steps that were trained again gave the weights that they had given before."""

from __future__ import annotations

import logging
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class ReplayedVersions:
    """Compares digests of versions with those of earlier attempts.

    They differ under another layout, learning rate or bucket size, which is no fault: trajectories that later versions
    sampled are then trained with the importance weights that the loss gives them, as any stale ones.
    """

    def __init__(self) -> None:
        self._earlier: Mapping[int, str] = {}
        self.num_equal = 0
        self.num_different = 0

    def expect(self, digests: Mapping[int, str]) -> None:
        """The digests that earlier attempts have published, by version."""
        self._earlier = digests

    def compare(self, version: int, digest: str) -> None:
        """A version is published."""
        earlier = self._earlier.get(version)
        if earlier is None:
            return
        if earlier == digest:
            self.num_equal += 1
            return
        if not self.num_different:
            _log.warning(
                "version %d has other weights than in the earlier attempt (digest %s, was %s); expected where layout, "
                "learning rate, hardware or weights.bucket_mb changed",
                version, digest, earlier,
            )  # fmt: skip
        self.num_different += 1

    def as_summary(self) -> dict[str, int]:
        """Numbers of versions published again."""
        return {"equal": self.num_equal, "different": self.num_different}
