"""tf-dist node: what is said about options before anything starts. What it does is in tests/integration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TF_DIST = Path(sys.executable).with_name("tf-dist")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--taint", "x"], "'x' is not KEY=VALUE:EFFECT"),
        (["--taint", "x=y:Sometimes"], "NoExecute"),
        (["--label", "zone"], "write zone=left"),
        (["--log-cert", "a.pem"], "--log-key"),
        (["--network", "wide"], "there is no network 'wide'"),
        (["--address", "my-machine"], "write 192.0.2.7"),
        (["--node", "cpu=many"], "cpu"),
    ],
)
def test_options_that_make_no_sense_are_explained(options: list[str], said: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{apiVersion: v1, kind: Config}")
    done = subprocess.run(
        [TF_DIST, "node", "--kubeconfig", config, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_cluster_it_says_where_it_looked(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    done = subprocess.run([TF_DIST, "node", "--kubeconfig", missing], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert str(missing) in done.stderr
    assert "Traceback" not in done.stderr
