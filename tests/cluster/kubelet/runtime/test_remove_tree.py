"""Folders that users' programs have filled are removed completely."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.kubelet.bench import as_other
from tf_dist.cluster.kubelet.runtime.remove_tree import remove_tree

DEEP = "import os\nfor _ in range(1500): os.mkdir('d' * 50); open('f', 'w').close(); os.chdir('d' * 50)"
ODD = r"""
import os
os.makedirs("closed/inner/more"); open("closed/inner/file", "w").close()
os.makedirs("readonly/inner"); open("readonly/inner/file", "w").close()
os.mkfifo("fifo"); os.symlink("loop", "loop"); os.symlink("/etc", "etc"); open(b"\xff", "w").close()
for name, mode in (("closed/inner", 0), ("closed", 0), ("readonly/inner", 0o555), ("readonly", 0o555), (".", 0)):
    os.chmod(name, mode)
"""
REMOVED = """
import os, sys, tempfile
from tf_dist.cluster.kubelet.runtime.remove_tree import remove_tree
folder = os.path.join(tempfile.mkdtemp(), "x")
os.mkdir(folder); os.chdir(folder)
exec(sys.argv[1])
os.chdir("/")
remove_tree(folder)
os.rmdir(os.path.dirname(folder))
"""


@pytest.mark.parametrize("script", [DEEP, ODD], ids=["deep", "without rights"])
def test_folder_is_removed_whatever_a_program_left_in_it(tmp_path: Path, script: str) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)
    remove_tree(str(folder))
    assert not os.path.lexists(folder)


def test_ordinary_user_removes_folders_without_rights() -> None:
    done = as_other("nobody", REMOVED, ODD)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("what", ["file", "link", "dangling", "missing"])
def test_what_is_there_instead_of_a_folder_is_removed_without_its_target(tmp_path: Path, what: str) -> None:
    target, path = tmp_path / "target", tmp_path / "path"
    target.mkdir()
    (target / "file").touch()
    if what == "file":
        path.touch()
    elif what != "missing":
        path.symlink_to(target if what == "link" else tmp_path / "nowhere")
    remove_tree(str(path))
    assert (os.path.lexists(path), (target / "file").exists()) == (False, True)
