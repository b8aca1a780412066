"""Security contexts and limits. The node honours what it can, refuses what safety depends on, and warns otherwise."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, as_other, make_pod, sh, until
from tf_dist.cluster.api import EVENTS, SECRETS, Object
from tf_dist.cluster.kubelet.node.machine import Account, NodeFeatures
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
from tf_dist.cluster.kubelet.pod.security_context import (
    CAPABILITIES,
    DEFAULT_CAPABILITIES,
    ContainerSecurity,
    plan_security,
)
from tf_dist.cluster.kubelet.runtime.cgroups import cgroup_paths, limit_files

as_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user or take capabilities away"
)
NOBODY, GROUP = 65534, 4321
STATUS = "grep -E '^(Uid|Gid|Groups|NoNewPrivs|CapEff|CapBnd|CapPrm|CapInh|CapAmb)' /proc/self/status"


@pytest.fixture(params=list(NetworkMode)[1:], ids=str)
def bench(request: pytest.FixtureRequest, benches: MakeBench) -> Bench:
    """Its working directory is open to every user. The folders of pytest are private."""
    return benches(network=request.param, workdir=Path("/"))


@pytest.fixture
def isolated(benches: MakeBench) -> Bench:
    return benches(network=NetworkMode.ISOLATED, workdir=Path("/"))


@pytest.fixture
def shared(benches: MakeBench) -> Bench:
    return benches(network=NetworkMode.SHARED, workdir=Path("/"))


def fields(bench: Bench, name: str) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in bench.log(name).splitlines())
    return {field: values.split() for field, _, values in lines}


def secure(**context: Any) -> dict[str, Any]:
    return {"container": {"securityContext": context}}


def warnings(bench: Bench) -> list[str]:
    events = bench.cluster.list(EVENTS, "default").items
    return sorted(event["message"] for event in events if event["reason"] == "NotHonoured")


# As root


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_containers_run_with_no_new_privs(bench: Bench) -> None:
    status = bench.run(sh("one", STATUS))
    assert status["phase"] == "Succeeded", status
    assert fields(bench, "one")["NoNewPrivs"] == ["1"]


@as_root
def test_root_has_default_capabilities_of_container_runtimes(bench: Bench) -> None:
    bench.run(sh("one", STATUS))
    found = fields(bench, "one")
    default = sum(1 << number for number, name in enumerate(CAPABILITIES) if name in DEFAULT_CAPABILITIES)
    assert int(found["CapBnd"][0], 16) & ~default == 0
    assert int(found["CapEff"][0], 16) == int(found["CapPrm"][0], 16) == int(found["CapBnd"][0], 16)
    assert found["Uid"] == ["0"] * 4


@as_root
def test_capabilities_are_dropped_but_not_added(bench: Bench) -> None:
    bench.run(sh("one", STATUS, **secure(capabilities={"drop": ["ALL"], "add": ["CAP_KILL", "SYS_ADMIN"]})))
    assert int(fields(bench, "one")["CapBnd"][0], 16) == 1 << CAPABILITIES.index("KILL")
    bench.run(sh("two", STATUS, **secure(capabilities={"drop": ["chown"]})))
    assert not int(fields(bench, "two")["CapEff"][0], 16) & 1
    until(lambda: warnings(bench) == ["container main: capabilities.add SYS_ADMIN: nothing is added here"])


@as_root
def test_container_runs_as_its_user_and_groups(bench: Bench) -> None:
    context = {"runAsUser": 12345, "runAsGroup": 543, "fsGroup": GROUP, "supplementalGroups": [777]}
    script = f"{STATUS}; echo HOME:$HOME; echo TMPDIR:$TMPDIR; echo err > /dev/stderr"
    status = bench.run(sh("one", script, securityContext=context, **secure(runAsGroup=544)))
    assert status["phase"] == "Succeeded", (status, bench.log("one"))
    found = fields(bench, "one")
    assert found["Uid"] == ["12345"] * 4
    assert found["Gid"] == ["544"] * 4
    assert found["Groups"] == ["777", str(GROUP)]
    assert int(found["CapEff"][0], 16) == int(found["CapPrm"][0], 16) == 0
    assert (found["HOME"], found["TMPDIR"]) == (["/"], [])


@as_root
def test_user_of_machine_has_its_own_group_and_home(bench: Bench) -> None:
    bench.run(sh("one", "id -u; id -g; echo $HOME $USER; touch /etc/x || echo refused", **secure(runAsUser=NOBODY)))
    assert bench.log("one").split("\n")[:3] == ["65534", "65534", "/nonexistent nobody"]
    assert "refused" in bench.log("one")


@as_root
def test_processes_of_other_users_end_with_their_pod(bench: Bench) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    bench.create(sh("one", script, terminationGracePeriodSeconds=30, **secure(runAsUser=NOBODY)))
    bench.says("one", "up")
    bench.delete("one")
    bench.gone("one")
    bench.create(sh("two", "trap '' TERM; setsid sleep 1000 & echo up; wait", **secure(runAsUser=NOBODY)))
    bench.says("two", "up")
    bench.delete("two", grace_period=0)
    bench.gone("two")


@as_root
def test_hooks_and_probes_run_as_user_of_container(isolated: Bench, open_folder: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", f"id -u > {open_folder}/hook"]}}}
    probe = {
        "exec": {"command": ["sh", "-c", f"id -u > {open_folder}/probe; grep NoNewPrivs /proc/self/status | grep 1"]}
    }
    container = {"lifecycle": hook, "readinessProbe": probe, "securityContext": {"runAsUser": NOBODY}}
    isolated.create(sh("one", "echo up; while :; do sleep 0.05; done", container=container))
    until(lambda: isolated.container("one").get("ready"))
    isolated.delete("one")
    isolated.gone("one")
    assert (open_folder / "hook").read_text() == (open_folder / "probe").read_text() == "65534\n"


@as_root
def test_volumes_belong_to_fs_group(isolated: Bench) -> None:
    isolated.cluster.create(SECRETS, "default", {"metadata": {"name": "s"}, "stringData": {"key": "secret"}})
    volumes = [
        {"name": "empty", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
    ]
    mounts = [{"name": item["name"], "mountPath": f"/v/{item['name']}"} for item in volumes]
    script = (
        "cd /v; cat secret/key; echo; for v in empty memory claim; do stat -c '%n %g' $v; echo 1 > $v/f;"
        "stat -c '%n %u %g' $v/f; done; (echo 2 > secret/key) 2>/dev/null || echo read-only"
    )
    context = {"runAsUser": NOBODY, "runAsGroup": NOBODY, "fsGroup": GROUP}
    both = {"volumes": volumes, "securityContext": context, "container": {"volumeMounts": mounts}}
    status = isolated.run(sh("one", script, **both))
    assert status["phase"] == "Succeeded", (status, isolated.log("one"))
    expected = ["secret"]
    for name in ("empty", "memory", "claim"):
        expected += [f"{name} {GROUP}", f"{name}/f {NOBODY} {GROUP}"]
    assert isolated.log("one").splitlines() == [*expected, "read-only"]


def test_read_only_root_allows_writes_to_volumes_only(isolated: Bench, open_folder: Path) -> None:
    volumes = [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": str(open_folder)}}]
    mounts = [{"name": "e", "mountPath": "/scratch"}, {"name": "h", "mountPath": "/host/data"}]
    script = (
        f"for d in / /etc /tmp /var/tmp /usr /host {open_folder};"
        "do (echo > $d/tf-dist-x) 2>/dev/null && echo $d; done;"
        "echo 1 > /scratch/a && echo 2 > /host/data/b && echo 3 > /dev/shm/c && echo 4 > /dev/null && cat /scratch/a"
    )
    context = {"volumeMounts": mounts, "securityContext": {"readOnlyRootFilesystem": True}}
    status = isolated.run(sh("one", script, volumes=volumes, container=context))
    assert status["phase"] == "Succeeded", (status, isolated.log("one"))
    assert isolated.log("one") == "1\n"
    assert (open_folder / "b").exists()
    isolated.run(sh("two", f"echo > {open_folder}/still-writable-for-others"))
    assert (open_folder / "still-writable-for-others").exists()


# Fields that cannot be enforced


@pytest.mark.parametrize(
    ("pod", "container", "message"),
    [
        ({"hostUsers": False}, {}, "hostUsers"),
        ({}, {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}, "seccompProfile Localhost"),
        ({"securityContext": {"seccompProfile": {"type": "Localhost"}}}, {}, "seccompProfile Localhost"),
        ({}, {"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}, "appArmorProfile Localhost"),
        ({}, {"runAsUser": "nobody"}, "runAsUser 'nobody'"),
        ({}, {"runAsUser": -1}, "runAsUser -1"),
        ({}, {"capabilities": {"drop": ["EVERYTHING"]}}, "EVERYTHING"),
        ({}, {"runAsNonRoot": True}, "runAsNonRoot"),
        ({"securityContext": {"runAsNonRoot": True}}, {"runAsUser": 0}, "runAsNonRoot"),
        ({"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, {}, "runAsNonRoot"),
        ({"securityContext": []}, {"runAsUser": []}, "runAsUser"),
        ({"securityContext": "safe"}, {}, "cannot be understood"),
    ],
)
@as_root
def test_pod_fails_if_security_field_cannot_be_enforced(
    shared: Bench, pod: Object, container: Object, message: str
) -> None:
    status = shared.run_unchecked(sh("one", "true", **pod, container={"securityContext": container}))
    assert (status["phase"], status["reason"]) == ("Failed", "CreateContainerConfigError")
    assert message in status["message"]
    assert not shared.container("one")["state"].get("terminated")


def test_read_only_root_needs_isolated_mode(shared: Bench) -> None:
    status = shared.run(sh("one", "true", **secure(readOnlyRootFilesystem=True)))
    assert (status["phase"], status["reason"]) == ("Failed", "CreateContainerConfigError")
    assert "isolated" in status["message"]


def test_warns_of_ignored_fields_once_per_pod_and_once_in_log(
    isolated: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    context = {"privileged": True, "allowPrivilegeEscalation": True, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"hostNetwork": True, "hostPID": True, **secure(**context)}
    for name in ("one", "two"):
        assert isolated.run(sh(name, "true", **pod))["phase"] == "Succeeded"
    until(lambda: len(warnings(isolated)) == 8)
    texts = ("privileged", "hostNetwork", "hostPID", "seccompProfile RuntimeDefault")
    for text in texts:
        assert sum(f"container main: {text}" in message for message in warnings(isolated)) == 2
        assert caplog.text.count(f"container main: {text}") == 1


def test_ordinary_pod_has_no_warnings(isolated: Bench) -> None:
    resources = {"requests": {"cpu": "10m", "memory": "1Mi"}}
    isolated.run(sh("one", "true", container={"resources": resources, "securityContext": {"runAsNonRoot": False}}))
    assert warnings(isolated) == []


def test_unprivileged_node_runs_pods_and_reports_unsupported_fields() -> None:
    script = """
import sys, tempfile
from pathlib import Path
from tests.cluster.kubelet.bench import Bench, settings, sh, until
from tf_dist.cluster.api import EVENTS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
with tempfile.TemporaryDirectory() as folder, MemoryCluster() as cluster:
    with Kubelet(cluster, settings=settings(Path(folder), network=NetworkMode.SHARED)) as kubelet:
        bench = Bench(cluster, kubelet)
        context = {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
        limits = {"limits": {"memory": "64Mi", "cpu": "1"}}
        pod = sh("one", "id -u; grep NoNew /proc/self/status", securityContext={"fsGroup": 5},
            container={"securityContext": context, "resources": limits})
        print(bench.run(pod)["phase"], bench.log("one").split())
        for number, asked in enumerate(({"runAsUser": 0}, {"runAsUser": 1}, {"runAsGroup": 1})):
            status = bench.run(sh(f"x{number}", "true", container={"securityContext": asked}))
            print(status["phase"], status["message"])
        print([e["message"] for e in cluster.list(EVENTS, "default").items if e["reason"] == "NotHonoured"])
"""
    done = as_other("nobody", script)
    lines = done.stdout.splitlines()
    assert lines[0] == "Succeeded ['65534', 'NoNewPrivs:', '1']", done.stderr
    assert all(line.startswith("Failed runAs") and "65534 and cannot become" in line for line in lines[1:4])
    assert "fsGroup" in lines[4], done.stderr
    assert "limits of memory, cpu" in lines[4]


def plan(node_features: NodeFeatures, context: Object, **spec: Any) -> ContainerSecurity:
    pod = make_pod("p", "true", container={"securityContext": context}, **spec)
    users = {1000: Account("user", 100, "/home/user")}
    return plan_security(pod, pod["spec"]["containers"][0], node_features, users.get)


def test_container_overrides_security_context_of_pod() -> None:
    node_features = NodeFeatures(uid=0, gid=0, switch=True, drop=True)
    found = plan(
        node_features, {"runAsGroup": 7, "runAsUser": None}, securityContext={"runAsUser": 1000, "runAsGroup": 6}
    )
    assert (found.uid, found.gid, found.groups) == (1000, 7, ())
    assert (plan(node_features, {"runAsUser": 1000}).gid, plan(node_features, {"runAsUser": 1001}).gid) == (100, 0)
    assert dict(plan(node_features, {"runAsUser": 1000}).env)["HOME"] == "/home/user"
    assert plan(node_features, {}).env == ()


@pytest.mark.parametrize(
    "unknown", [{"capabilities": ["ALL"]}, {"capabilities": {"drop": ["ALL"]}}, {"readOnlyRootFilesystem": True}]
)
def test_fields_of_containers_only_are_ignored_in_security_context_of_pod(unknown: dict[str, Any]) -> None:
    """As on a cluster, whose API server drops them."""
    node_features = NodeFeatures(uid=0, gid=0, switch=True, drop=True, isolated=True)
    assert plan(node_features, {}, securityContext=unknown) == plan(node_features, {})


def test_unprivileged_node_keeps_its_own_user() -> None:
    node_features = NodeFeatures(uid=1000, gid=1000)
    kept = plan(node_features, {"runAsUser": 1000, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}})
    assert (kept.uid, kept.gid, kept.groups, kept.capabilities) == (None, None, None, None)
    with pytest.raises(PodStartError, match="runAsUser 0"):
        plan(node_features, {"runAsUser": 0})


def test_root_without_right_to_drop_capabilities_refuses_drop() -> None:
    node_features = NodeFeatures(uid=0, gid=0)
    assert plan(node_features, {}).capabilities is None
    with pytest.raises(PodStartError, match="may not take any away"):
        plan(node_features, {"capabilities": {"drop": ["ALL"]}})


# Limits


def needs_cgroup(bench: Bench, name: str) -> None:
    if name not in bench.kubelet.enforced:
        pytest.skip(f"this user may make no cgroups with {name} here")


def test_only_container_over_its_memory_limit_is_killed(bench: Bench) -> None:
    needs_cgroup(bench, "memory")
    limits = {"limits": {"memory": "64Mi"}}
    grow = "data = []\nwhile True: data.append(bytearray(b'x') * (1 << 20))"
    bench.create(make_pod("greedy", "python", "-c", grow, container={"resources": limits}))
    bench.create(sh("modest", "echo up; while :; do sleep 0.05; done", container={"resources": limits}))
    assert bench.over("greedy")["phase"] == "Failed"
    ended = bench.container("greedy")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 128 + signal.SIGKILL)
    assert "running" in bench.container("modest")["state"]
    assert warnings(bench) == []


def test_container_killed_by_signal_is_not_oom_killed(bench: Bench) -> None:
    bench.run(sh("one", "kill -9 $$$$", container={"resources": {"limits": {"memory": "64Mi"}}}))
    ended = bench.container("one")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("Error", 137)


def test_cgroups_of_container_are_removed_with_pod(bench: Bench) -> None:
    needs_cgroup(bench, "cpu")
    limits = {"limits": {"memory": "64Mi", "cpu": "250m"}}
    bench.create(
        sh("one", "echo up; cat /proc/self/cgroup; while :; do sleep 0.05; done", container={"resources": limits})
    )
    supervisor = bench.kubelet.supervisor_pid
    bench.says("one", f"tf-dist-{supervisor}/")
    groups = groups_of(supervisor)
    assert groups
    bench.delete("one", grace_period=0)
    bench.gone("one")
    until(lambda: not any(path.exists() for path in groups))


def groups_of(supervisor: int) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"**/tf-dist-{supervisor}/*") if path.is_dir()]


def test_stopped_node_leaves_no_cgroups(benches: MakeBench) -> None:
    bench = benches(workdir=Path("/"))
    needs_cgroup(bench, "pids")
    bench.create(sh("one", "echo up; while :; do sleep 0.05; done"))
    bench.says("one", "up")
    supervisor = bench.kubelet.supervisor_pid
    assert groups_of(supervisor)
    bench.kubelet.stop()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/tf-dist-{supervisor}"))


V1 = "30 25 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
V1_CPU = "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "29 25 0:25 / /sys/fs/cgroup rw shared:8 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "29 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def test_cgroup_paths_are_read_from_mounts() -> None:
    old = cgroup_paths(V1 + V1_CPU + HYBRID, "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/\n")
    assert old["memory"].bases == ("/sys/fs/cgroup/memory/a/b",)
    assert old["cpu"].bases == ("/sys/fs/cgroup/cpu,cpuacct/c",)
    assert old["pids"].unified
    new = cgroup_paths(V2, "0::/user.slice/session.scope\n")
    bases = ("/sys/fs/cgroup/user.slice/session.scope", "/sys/fs/cgroup/user.slice")
    assert {name: place.bases for name, place in new.items()} == dict.fromkeys(("memory", "cpu", "pids"), bases)
    part = V2.replace("0:25 / ", "0:25 /docker/x ")
    assert cgroup_paths(part, "0::/docker/x/y\n")["memory"].bases[0] == "/sys/fs/cgroup/y"
    assert cgroup_paths("nonsense\n- -\n", "x\n::\n") == {}


def test_limit_files_of_both_cgroup_versions() -> None:
    assert dict(limit_files("memory", 1 << 26))["memory.max"] == str(1 << 26)
    assert dict(limit_files("cpu", 250)) == {
        "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000", "cpu.max": "25000 100000",
    }  # fmt: skip
    assert limit_files("pids", 10) == [("pids.max", "10")]
