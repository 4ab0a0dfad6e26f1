"""Tars that come from a box without python, where whatever made them may be the model's."""

from __future__ import annotations

import tarfile

import pytest

from sandboxes.engine.shell_files import unpacked

LIMIT = 1 << 20


def test_a_tar_nested_deeper_than_python_goes_is_no_tar() -> None:
    """Each header says that another name follows, and the reader takes one call more for each."""
    header = tarfile.TarInfo("x")
    header.type = tarfile.GNUTYPE_LONGNAME
    header.size = 1
    link = header.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(tarfile.BLOCKSIZE, b"\0")
    with pytest.raises(ValueError, match="no tar"):
        unpacked(link * 3000, LIMIT, "folder")
