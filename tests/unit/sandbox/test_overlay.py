import pytest

from rollart_hpc.errors import NoSandboxError
from rollart_hpc.sandbox import overlay


def test_roots_are_refused_where_nothing_can_overlay_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overlay, "has_user_attributes", lambda: False)
    monkeypatch.setattr(overlay.shutil, "which", lambda _: None)
    with pytest.raises(NoSandboxError, match="fuse-overlayfs"):
        overlay.overlay_command("/images/root", "/layer")
    monkeypatch.setattr(overlay.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert overlay.overlay_command("/images/my root", "/layer") == (
        "/usr/bin/fuse-overlayfs -o lowerdir='/images/my root',upperdir=/layer/upper,workdir=/layer/work /layer/root"
    )
    with pytest.raises(NoSandboxError, match="colon"):
        overlay.overlay_command("/images/a:b", "/layer")


def test_the_kernel_takes_any_path_of_a_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overlay, "has_user_attributes", lambda: True)
    assert overlay.overlay_command("/images/a:b, c", "/layer").startswith("cd '/images/a:b, c'; mount -t overlay ")
