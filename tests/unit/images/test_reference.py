"""References are read as docker reads them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.errors import ImageError
from rollart_hpc.images.reference import (
    DirectoryReference,
    LayoutReference,
    RegistryReference,
    parse_reference,
)
from rollart_hpc.images.registry import registry_url

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("swebench/sweb.eval.x86_64.a_1776_b-1", "docker.io/swebench/sweb.eval.x86_64.a_1776_b-1:latest"),
        ("index.docker.io/python", "docker.io/library/python:latest"),
        ("docker.io/library/python", "docker.io/library/python:latest"),
        ("ghcr.io/a/b/c:v1", "ghcr.io/a/b/c:v1"),
        ("localhost/a", "localhost/a:latest"),
        ("registry:5000/a:b", "registry:5000/a:b"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ("Host/a", "Host/a:latest"),
        (f"python@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
        (f"quay.io/a/b:v1@{DIGEST}", f"quay.io/a/b@{DIGEST}"),
    ],
)
def test_a_reference_is_completed_as_docker_does(text: str, canonical: str):
    assert str(parse_reference(text)) == canonical


def test_local_references_are_paths_of_directories_and_layouts(tmp_path: str):
    assert parse_reference(f"dir:{tmp_path}") == DirectoryReference(tmp_path)
    assert parse_reference(f"oci:{tmp_path}") == LayoutReference(tmp_path)
    assert parse_reference(f"oci:{tmp_path}:v1") == LayoutReference(tmp_path, "v1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "name"),
        ("Python", "small letters"),
        ("a//b", "small letters"),
        ("a/../b", "small letters"),
        ("host.com/", "small letters"),
        ("docker://python", "leave out docker://"),
        ("python:", "tag"),
        ("python:a b", "tag"),
        ("python@sha256:abc", "digest"),
        ("python@sha512:" + "0" * 128, "digest"),
        ("ho_st.com/a", "host"),
        ("host..com/a", "host"),
        ("a" * 64 + ".com/a", "host"),
        ("a." * 200 + "com/a", "host"),
        ("host.com:65536/a", "host"),
        ("[::::]/a", "host"),
        ("dir:~nobody.of.this.name/a", "home"),
        ("oci:~nobody.of.this.name/a:v1", "home"),
        ("oci:/a\0:v1", "no path"),
        ("a" * 300, "small letters"),
        ("dir:", "no path"),
        ("oci::v1", "no path"),
    ],
)
def test_what_is_no_reference_is_refused_with_what_is_expected(text: str, why: str):
    with pytest.raises(ImageError, match=why) as raised:
        parse_reference(text)
    assert not raised.value.retryable
    assert re.search("expected|give the path in full", str(raised.value))


@given(st.text())
def test_any_text_is_a_reference_that_reads_the_same_again_or_an_error(text: str):
    try:
        reference = parse_reference(text)
    except ImageError:
        return
    if isinstance(reference, RegistryReference):
        assert parse_reference(str(reference)) == reference
        assert ".." not in reference.repository


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("localhost:5000", "http"),
        ("127.0.0.2", "http"),
        ("[::1]:5000", "http"),
        ("localhost.example.com", "https"),
        ("127.0.0.1.example.com:5000", "https"),
        ("localhosts", "https"),
    ],
)
def test_only_this_machine_is_reached_without_encryption(host: str, scheme: str):
    assert registry_url(host) == f"{scheme}://{host}"
