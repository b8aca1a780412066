"""The code folder of a job: the files in the archive, and rejected folders."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from tf_dist import InvalidJob
from tf_dist.client.code_archive import pack_code


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def unpacked(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as found:
        return {one.name: one for one in found.getmembers()}


def packed_names(folder: Path) -> list[str]:
    return list(unpacked(pack_code(folder)))


def test_archive_is_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, **{"b/train.py": "print(1)", "a.py": "", "b.py": ""})
    os.utime(tmp_path / "two" / "a.py", (1, 1))
    (tmp_path / "two" / "b.py").chmod(0o600)
    assert pack_code(tmp_path / "one") == pack_code(tmp_path / "two")
    assert packed_names(tmp_path / "one") == ["a.py", "b.py", "b/train.py"]
    (tmp_path / "two" / "b.py").chmod(0o700)
    assert pack_code(tmp_path / "one") != pack_code(tmp_path / "two")


def test_files_keep_execute_bit_and_have_no_owner(tmp_path: Path) -> None:
    long = "/".join(["a-folder-with-a-long-name"] * 8) + "/ünicode.txt"
    write(tmp_path, **{"run": "#!/bin/sh\n", long: "x"})
    (tmp_path / "run").chmod(0o755)
    found = unpacked(pack_code(tmp_path))
    assert {name: (one.mode, one.uid, one.uname) for name, one in found.items()} == {
        long: (0o644, 0, ""),
        "run": (0o755, 0, ""),
    }


def test_excludes_repositories_environments_caches_and_ignored_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            ".git/config": "", "train.py": "", "env/pyvenv.cfg": "", "env/lib.py": "", "pkg/__pycache__/a.pyc": "",
            "old.pyc": "", "cache/CACHEDIR.TAG": "", "cache/x": "", "node_modules/x": "", "pkg/.pytest_cache/x": "",
            ".gitignore": "*.log\n/data/\n!keep.log\n", "a.log": "", "keep.log": "", "data/x": "", "pkg/data/y": "",
            "pkg/.gitignore": "y\n", "pkg/x.py": "", ".tfdistignore": "notes*\n!a.log\n", "notes.md": "",
            "deep/.tfdistignore": "!notes.txt\n", "deep/notes.txt": "",
        },
    )  # fmt: skip
    names = [name for name in packed_names(tmp_path) if "ignore" not in name]
    assert names == ["a.log", "deep/notes.txt", "keep.log", "pkg/x.py", "train.py"]


def test_excludes_files_with_secrets_by_default(tmp_path: Path) -> None:
    write(tmp_path, **{"train.py": "", ".env": "", "prod.env": "", "pkg/.env.local": "", ".netrc": "", ".ssh/id": ""})
    assert packed_names(tmp_path) == ["train.py"]
    write(tmp_path, **{".tfdistignore": "!prod.env"})
    assert packed_names(tmp_path) == [".tfdistignore", "prod.env", "train.py"]


def test_applies_ignore_patterns_of_enclosing_repository(tmp_path: Path) -> None:
    write(tmp_path, **{".gitignore": "*.log", "repo/.git/config": "", "repo/.gitignore": "out/\n/src/secret\n"})
    write(tmp_path / "repo" / "src", **{"train.py": "", "out/x": "", "secret": "", "a.log": ""})
    assert packed_names(tmp_path / "repo" / "src") == ["a.log", "train.py"]


def test_includes_folder_that_repository_ignores(tmp_path: Path) -> None:
    write(tmp_path, **{".git/config": "", ".gitignore": "scratch/\n"})
    write(tmp_path / "scratch", **{"train.py": "", "a.log": "", ".gitignore": "*.log\n", "sub/conda-meta/history": ""})
    assert packed_names(tmp_path / "scratch") == [".gitignore", "train.py"]


def test_keeps_links_inside_folder_and_rejects_others(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write(folder, **{"pkg/train.py": "", "data/x": ""})
    (folder / "pkg" / "relative").symlink_to("../data")
    (folder / "absolute").symlink_to(folder / "pkg" / "train.py")
    links = {name: one.linkname for name, one in unpacked(pack_code(folder)).items() if one.issym()}
    assert links == {"absolute": "pkg/train.py", "pkg/relative": "../data"}
    (folder / "secret").symlink_to("../../etc/passwd")
    with pytest.raises(InvalidJob, match=r"^code: .*secret is a link to .*/etc/passwd, which is not in the folder"):
        pack_code(folder)
    write(folder, **{".tfdistignore": "secret"})
    assert "secret" not in packed_names(folder)


def test_rejects_folder_that_excludes_program(tmp_path: Path) -> None:
    write(tmp_path, **{"train.py": "", "pkg/run.py": "", ".gitignore": "run.py\n"})
    assert pack_code(tmp_path, ["python", "-u", "./train.py", "missing.py", "/etc/passwd", "x" * 5000, "a\0b"])
    with pytest.raises(InvalidJob, match=r"^code: .* is sent without pkg/run\.py, .*") as refused:
        pack_code(tmp_path, ["python", "./pkg/run.py"])
    (problem,) = refused.value.problems
    assert problem.hint == f"write !/pkg/run.py into {tmp_path}/.tfdistignore"
    write(tmp_path, **{".tfdistignore": "!/pkg/run.py"})
    assert pack_code(tmp_path, ["python", "./pkg/run.py"])
    write(tmp_path, **{".tfdistignore": "pkg/\n"})
    with pytest.raises(InvalidJob, match=r"write !/pkg/ into .*\.tfdistignore"):
        pack_code(tmp_path, ["pkg/run.py"])


def test_skips_sockets_and_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{"train.py": ""})
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / ".gitignore")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
        assert packed_names(tmp_path) == ["train.py"]


def test_rejects_large_folder_and_lists_largest_files(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"part-{number:02}").write_bytes(os.urandom((number + 1) << 17))
    with pytest.raises(InvalidJob) as refused:
        pack_code(tmp_path)
    told = str(refused.value)
    assert "MiB compressed, and 8 MiB can be sent with a job" in told
    assert told.index("part-11 (1.5 MiB)") < told.index("part-10 (1.4 MiB)") < told.index("part-02")
    assert "part-01" not in told
    assert ".tfdistignore" in told


def test_rejects_sparse_file_and_many_files(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidJob, match=r"has 1048576\.0 MiB, and 64 MiB can be sent.*huge \(1048576\.0 MiB\)"):
        pack_code(tmp_path)
    (tmp_path / "huge").unlink()
    for number in range(10_001):
        (tmp_path / str(number)).touch()
    with pytest.raises(InvalidJob, match="has more than 10000 files"):
        pack_code(tmp_path)


@pytest.mark.parametrize("files", [{}, {".gitignore": "*"}, {"env/pyvenv.cfg": ""}])
def test_rejects_folder_without_files(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **files)
    with pytest.raises(InvalidJob, match="has no files to send"):
        pack_code(tmp_path)


def test_reports_invalid_ignore_patterns_with_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".tfdistignore").write_text("*.bin\n!\n[a\n\\\n")
    with pytest.raises(InvalidJob) as told:
        pack_code(tmp_path)
    assert [one.message for one in told.value.problems] == [
        f"{tmp_path / '.tfdistignore'}, line 2, is not a pattern: '!'",
        f"{tmp_path / '.tfdistignore'}, line 4, is not a pattern: '\\\\'",
    ]


def test_rejects_path_that_is_not_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", Path(__file__)):
        with pytest.raises(InvalidJob, match=r"^code: .* is not a folder"):
            pack_code(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every folder, and read every file")
def test_rejects_unreadable_file(tmp_path: Path) -> None:
    write(tmp_path, **{"train.py": "", "secret": ""})
    (tmp_path / "secret").chmod(0)
    with pytest.raises(InvalidJob, match="secret cannot be read: Permission denied"):
        pack_code(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every folder, and read every file")
@pytest.mark.parametrize(("mode", "named"), [(0o000, "data"), (0o400, "data/.gitignore"), (0o100, "data")])
def test_rejects_unreadable_subfolder(tmp_path: Path, mode: int, named: str) -> None:
    write(tmp_path, **{"train.py": "", "data/x.csv": ""})
    (tmp_path / "data").chmod(mode)
    try:
        with pytest.raises(InvalidJob, match=rf"{tmp_path}/{named} cannot be read: Permission denied") as refused:
            pack_code(tmp_path)
        assert f"chmod u+rx {tmp_path}/data" in str(refused.value)
        write(tmp_path, **{".tfdistignore": "data/\n"})
        assert packed_names(tmp_path) == [".tfdistignore", "train.py"]
    finally:
        (tmp_path / "data").chmod(0o700)


KERNEL = Path("/proc/sys/kernel/random")


@pytest.mark.skipif(not KERNEL.is_dir(), reason="needs files whose content is longer than they say")
def test_rejects_file_that_changes_while_read() -> None:
    with pytest.raises(InvalidJob, match="boot_id changed while it was packed"):
        pack_code(KERNEL)
