"""batch.volcano.sh/v1alpha1: defaults, validation, warnings, and the resulting job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import changed, errors, only_error, paths, template, volcano, warnings
from tf_dist.core.dialects import defaulted, parse, read, suspend_patch
from tf_dist.core.model.job import (
    Action,
    CleanPodPolicy,
    CompletionByCounts,
    Dependency,
    Event,
    Plugins,
    Role,
    Rule,
    ServiceStyle,
    TFConfigStyle,
)

POLICIES = "spec.policies"
POD = "spec.tasks.0.template.spec"
WORKER_POLICY = "spec.tasks[1].template.spec.restartPolicy"


def test_defaults_match_webhook():
    document = changed(volcano(), "spec", {"tasks": [{"replicas": 2, "template": template(hostNetwork=True)}]})
    document["spec"]["plugins"] = {"tensorflow": []}
    assert defaulted(document)["spec"] == {
        "queue": "default",
        "maxRetry": 3,
        "minAvailable": 2,
        "plugins": {"tensorflow": [], "svc": []},
        "tasks": [
            {
                "name": "default0",
                "replicas": 2,
                "minAvailable": 2,
                "maxRetry": 3,
                "template": template(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
            }
        ],
    }


def test_minimum_comes_from_tasks():
    document = changed(volcano(), "spec.minAvailable", 0)
    document = changed(document, "spec.tasks.1.minAvailable", 1)
    job = parse(document).job
    assert (job.scheduling.min_available, job.counting) == (2, CompletionByCounts())
    assert [spec.min_available for spec in job.replica_specs] == [1, 1]
    assert [spec.min_replicas for spec in job.replica_specs] == [1, 2]


def test_parses_min_success():
    assert parse(changed(volcano(), "spec.minSuccess", 2)).job.counting == CompletionByCounts(min_success=2)


def test_parses_job():
    job = parse(volcano()).job
    assert [(spec.type, spec.role, spec.replicas, spec.container, spec.port) for spec in job.replica_specs] == [
        ("ps", Role.PS, 1, "tensorflow", 2222),
        ("worker", Role.WORKER, 2, "tensorflow", 2222),
    ]
    assert job.rules == (Rule(events=frozenset({Event.POD_EVICTED}), action=Action.RESTART_JOB),)
    complete = Rule(events=frozenset({Event.TASK_COMPLETED}), action=Action.COMPLETE_JOB)
    assert [spec.rules for spec in job.replica_specs] == [(), (complete,)]
    assert (job.success, job.running_types, job.counting) == ((), (), CompletionByCounts())
    policy = job.run_policy
    assert (policy.clean_pods, policy.max_restarts) == (CleanPodPolicy.RUNNING, 2)
    assert not policy.container_restarts_count
    assert (job.tf_config, job.services) == (TFConfigStyle.NONE, ServiceStyle.PER_JOB)
    assert job.plugins == Plugins(env=True, svc=True)
    assert (job.scheduling.queue, job.scheduling.scheduler_name) == ("default", "volcano")
    assert [spec.container_restarts for spec in job.replica_specs] == [3, 3]
    assert warnings(volcano()) == []


def test_max_restarts_is_max_retry_minus_one():
    assert parse(changed(volcano(), "spec.maxRetry", 1)).job.run_policy.max_restarts == 0
    assert parse(changed(volcano(), "spec.maxRetry", 0)).job.run_policy.max_restarts == 2
    assert parse(changed(volcano(), "spec.tasks.0.maxRetry", -1)).job.replica_specs[0].container_restarts is None


def test_parses_tensorflow_plugin():
    plugin = ["--worker=trainer", "--ps=ps", "--port", "3333"]
    document = changed(volcano(), "spec.plugins", {"tensorflow": plugin})
    document = changed(document, "spec.tasks.1.name", "trainer")
    job = parse(document).job
    assert [spec.role for spec in job.replica_specs] == [Role.PS, Role.WORKER]
    assert [spec.port for spec in job.replica_specs] == [3333, 3333]
    assert (job.tf_config, job.plugins.svc, job.services) == (TFConfigStyle.VOLCANO, True, ServiceStyle.PER_JOB)
    alone = changed(document, "spec.tasks", [{"name": "trainer", "replicas": 1, "template": template()}])
    alone = changed(alone, "spec.plugins", {"tensorflow": ["--worker=trainer"]})
    assert parse(changed(alone, "spec.minAvailable", 1)).job.tf_config is TFConfigStyle.NONE


def test_parses_svc_arguments():
    arguments = ["--publish-not-ready-addresses=true", "--disable-network-policy", "--inject-hosts-env=false"]
    found = parse(changed(volcano(), "spec.plugins.svc", arguments)).job.plugins
    assert found == Plugins(env=True, svc=True, publish_not_ready=True, network_policy=False, hosts_env=False)


def test_job_without_svc_plugin_has_no_services():
    assert parse(changed(volcano(), "spec.plugins", {"env": None})).job.services is ServiceStyle.NONE


def test_training_container_is_named_tensorflow_or_first():
    pod = template(restartPolicy="Never")
    pod["spec"]["containers"][0]["name"] = "main"
    ports = [{"name": "tfjob-port", "containerPort": 4444}]
    pod["spec"]["containers"].append({"name": "log", "image": "log:1"})
    document = changed(volcano(), "spec.tasks.0.template", pod)
    assert parse(document).job.replica_specs[0].container == "main"
    pod["spec"]["containers"][1] |= {"name": "tensorflow", "ports": ports}
    spec = parse(changed(volcano(), "spec.tasks.0.template", pod)).job.replica_specs[0]
    assert (spec.container, spec.port) == ("tensorflow", 4444)


def test_default_restart_policy_is_always():
    document = changed(volcano(), "spec.tasks.0.template.spec.restartPolicy", ...)
    assert parse(document).job.replica_specs[0].pod_restart_policy == "Always"


def test_task_without_known_name_has_other_role():
    assert parse(changed(volcano(), "spec.tasks.1.name", "trainer")).job.replica_specs[1].role is Role.OTHER


def test_parses_dependencies_and_volumes():
    document = changed(volcano(), "spec.tasks.1.dependsOn", {"name": ["ps"], "iteration": "any"})
    document = changed(document, "spec.volumes", [{"mountPath": "/models", "volumeClaimName": "models"}])
    job = parse(document).job
    assert job.replica_specs[1].depends == Dependency(on=("ps",), any=True)
    assert job.volumes == ({"mountPath": "/models", "volumeClaimName": "models"},)


def rules(*policies: dict[str, Any]) -> tuple[Rule, ...]:
    return parse(changed(volcano(), POLICIES, list(policies))).job.rules


def test_parses_policies():
    everything, failed = frozenset(Event), frozenset({Event.POD_FAILED})
    assert rules({"event": "*", "action": "RestartJob", "timeout": "10m"}) == (
        Rule(events=everything, action=Action.RESTART_JOB, timeout=600.0),
    )
    (always,) = rules({"event": "*", "action": "RestartJob"})
    assert always.events == everything - {Event.POD_PENDING}
    exit_, other = rules({"exitCode": 137, "action": "RestartTask"}, {"event": "PodFailed", "action": "AbortJob"})
    assert (exit_.events, other.events) == (failed, failed)
    assert [(code, False) in exit_.codes for code in (137, 138, 1)] == [True, False, False]
    assert (None, False) not in exit_.codes
    (several,) = rules({"events": ["PodFailed", "PodEvicted", "PodFailed"], "action": "RestartPod"})
    assert several.events == {Event.POD_FAILED, Event.POD_EVICTED}


def test_policies_that_never_fire_are_dropped_with_warning():
    document = changed(volcano(), POLICIES, [{"event": "PodPending", "action": "RestartJob"}])
    assert (paths(warnings(document)), parse(document).job.rules) == (["spec.policies[0].event"], ())
    document = changed(volcano(), POLICIES, [{"event": "JobUpdated", "action": "RestartJob"}])
    assert (paths(warnings(document)), parse(document).job.rules) == (["spec.policies[0].event"], ())


@pytest.mark.parametrize("event", ["*", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "TaskFailed"])
@pytest.mark.parametrize("action", [*Action][:7])
def test_allowed_events_and_actions(event: str, action: Action):
    assert rules({"event": event, "action": action.value})[0].action is action


@pytest.mark.parametrize(
    ("policies", "path", "message", "hint"),
    [
        ([{"event": "PodFailed", "exitCode": 1, "action": "AbortJob"}], "[0]", "both an event and an exitCode", "two"),
        ([{"action": "AbortJob"}], "[0]", "neither an event nor an exitCode", "PodFailed"),
        ([{"exitCode": 0, "action": "AbortJob"}], "[0].exitCode", "0 means success", "TaskCompleted"),
        ([{"event": "PodFailed"}], "[0].action", "is required and missing", "RestartJob"),
        ([{"exitCode": 3, "action": "Restart"}], "[0].action", "unknown action 'Restart'", "Restart"),
        (
            [{"event": "PodFailed", "action": "RestartPartition"}],
            "[0].action",
            "does not know partitions",
            "RestartTask",
        ),
        ([{"event": "PodFailed", "action": "SyncJob"}], "[0].action", "internal to Volcano", ""),
        ([{"event": "PodFailed", "action": "FailJob"}], "[0].action", "unknown action 'FailJob'", ""),
        ([{"event": "PodRunning", "action": "AbortJob"}], "[0].event", "internal to Volcano", ""),
        ([{"event": "OutOfSync", "action": "AbortJob"}], "[0].event", "internal to Volcano", ""),
        ([{"event": "CommandIssued", "action": "AbortJob"}], "[0].event", "internal to Volcano", ""),
        ([{"event": "NodeLost", "action": "AbortJob"}], "[0].event", "unknown event 'NodeLost'", "known"),
        ([{"events": ["PodFaild"], "action": "AbortJob"}], "[0].events", "unknown event", "did you mean PodFailed?"),
        (
            [{"event": "PodFailed", "action": "AbortJob", "timeout": "10"}],
            "[0].timeout",
            "is not a duration",
            "write 10s",
        ),
        (
            [{"event": "PodFailed", "action": "AbortJob"}, {"events": ["PodFailed"], "action": "RestartJob"}],
            "[1]",
            "event PodFailed already has a policy",
            "first one wins",
        ),
        (
            [{"exitCode": 3, "action": "AbortJob"}, {"exitCode": 3, "action": "RestartJob"}],
            "[1].exitCode",
            "exit code 3 already has a policy",
            "",
        ),
        (
            [{"event": "*", "action": "AbortJob"}, {"event": "PodFailed", "action": "RestartJob"}],
            "",
            "'*' is every event, so PodFailed cannot have a policy in addition",
            "keep only the policy for '*'",
        ),
    ],
)
def test_refuses_invalid_policies(policies: list[dict[str, Any]], path: str, message: str, hint: str):
    for place in (POLICIES, "spec.tasks.0.policies"):
        problem = only_error(changed(volcano(), place, policies))
        assert problem.path == place.replace(".0", "[0]") + path
        assert message in problem.message
        assert hint in problem.hint


def test_exit_code_policy_may_accompany_any_event():
    assert len(rules({"exitCode": 3, "action": "AbortJob"}, {"event": "*", "action": "RestartJob"})) == 2


@pytest.mark.parametrize(
    ("path", "value", "where", "message", "hint"),
    [
        ("spec.minAvailable", 4, "spec.minAvailable", "the tasks have 3: it could never start", "3 or less"),
        ("spec.minSuccess", 4, "spec.minSuccess", "the tasks have 3", ""),
        ("spec.minSuccess", 0, "spec.minSuccess", "must be at least 1", ""),
        ("spec.tasks.1.minAvailable", 3, "spec.tasks[1].minAvailable", "there are 2", "2 or less"),
        ("spec.tasks.1.name", "ps", "spec.tasks[1].name", "a second task named 'ps'", ""),
        ("spec.tasks.1.name", "Worker_1", "spec.tasks[1].name", "not a valid Kubernetes name", "worker-1"),
        ("spec.tasks.1.name", "w" * 64, "spec.tasks[1].name", "is 64 characters long", ""),
        ("spec.tasks.1.name", "w" * 50, "metadata.name", "a name of 66 characters", "may have 10 characters"),
        ("spec.tasks.1.name", "w" * 62, "metadata.name", "78 characters", "shorten the replica type"),
        (
            "spec.tasks.1.dependsOn",
            {"name": ["pss"]},
            "spec.tasks[1].dependsOn.name",
            "no task 'pss'",
            "did you mean ps?",
        ),
        ("spec.tasks.1.dependsOn", {"name": ["worker"]}, "spec.tasks[1].dependsOn", "worker -> worker", ""),
        ("spec.tasks.1.partitionPolicy", {"totalPartitions": 2}, "spec.tasks[1].partitionPolicy", "partitions", ""),
        ("spec.volumes", [{"mountPath": "/m"}], "spec.volumes[0].volumeClaimName", "is required and missing", ""),
        (
            "spec.volumes",
            [{"mountPath": "/m", "volumeClaim": {}}],
            "spec.volumes[0].volumeClaim",
            "does not create claims",
            "",
        ),
        ("spec.volumes", [{"mountPath": "m:", "volumeClaimName": "c"}], "spec.volumes[0].mountPath", "absolute", ""),
        ("spec.volumes", [{"volumeClaimName": "c"}], "spec.volumes[0].mountPath", "is required and missing", ""),
        ("spec.queue", "root", "spec.queue", "root queue", ""),
        ("spec.networkTopology", {"mode": "firm"}, "spec.networkTopology.mode", "unknown value 'firm'", ""),
        (
            "spec.networkTopology",
            {"highestTierAllowed": 1, "highestTierName": "rack"},
            "spec.networkTopology",
            "has both highestTierAllowed and highestTierName",
            "keep one",
        ),
        ("spec.tasks", [], "spec.tasks", "at least one task", ""),
        ("spec.maxRetry", -1, "spec.maxRetry", "must not be negative", ""),
        ("metadata.name", "a_b", "metadata.name", "not a valid Kubernetes name", "a-b"),
        ("metadata.name", "9lives", "metadata.name", "must start with a letter", "lives"),
    ],
)
def test_validation_errors(path: str, value: Any, where: str, message: str, hint: str):
    found = errors(changed(volcano(), path, value))
    problem = next(problem for problem in found if problem.path == where)
    assert message in problem.message
    assert hint in problem.hint


def test_name_may_start_with_digit_without_services():
    document = changed(changed(volcano(), "metadata.name", "9lives"), "spec.plugins", {"env": []})
    assert parse(document).job.key.name == "9lives"


def test_error_shows_cycle_of_dependencies():
    document = volcano()
    document["spec"]["tasks"].append({"name": "eval", "replicas": 1, "template": template(restartPolicy="Never")})
    for index, name in enumerate(["eval", "ps", "worker"]):
        document["spec"]["tasks"][index]["dependsOn"] = {"name": [name]}
    assert "ps -> eval -> worker -> ps" in only_error(document).message


def test_refuses_job_without_replicas():
    document = changed(changed(volcano(), "spec.tasks.0.replicas", 0), "spec.tasks.1.replicas", 0)
    assert "spec.tasks" in paths(errors(document))


@pytest.mark.parametrize(
    ("path", "value", "where", "message"),
    [
        (f"{POD}.restartPolicy", ..., "spec.tasks[0].template.spec.restartPolicy", "default of Kubernetes is Always"),
        ("spec.tasks.1.template.spec.restartPolicy", "Always", WORKER_POLICY, "policy for TaskCompleted never fires"),
        (
            "spec.tasks.0.policies",
            [{"event": "TaskFailed", "action": "AbortJob"}],
            "spec.tasks[0].template.spec.restartPolicy",
            "never fires",
        ),
        ("spec.tasks.0.topologyPolicy", "best-effort", "spec.tasks[0].topologyPolicy", "not used"),
        ("spec.networkTopology", {"mode": "soft"}, "spec.networkTopology", "not used"),
        ("spec.networkTopology", {"highestTierAllowed": 1}, "spec.networkTopology", "not used"),
    ],
)
def test_warnings(path: str, value: Any, where: str, message: str):
    (found,) = warnings(changed(volcano(), path, value))
    assert found.path == where
    assert message in found.message


RESTART_ON_SUCCESS = {"event": "TaskCompleted", "action": "RestartJob"}


@pytest.mark.parametrize(
    ("job", "task", "where"),
    [
        ([RESTART_ON_SUCCESS], [], "spec.policies[0].action"),
        ([], [{"event": "TaskCompleted", "action": "RestartTask"}], "spec.tasks[1].policies[0].action"),
        ([], [{"events": ["PodFailed", "TaskCompleted"], "action": "RestartPod"}], "spec.tasks[1].policies[0].action"),
        ([{"event": "*", "action": "RestartJob"}], [], "spec.policies[0].action"),
        ([RESTART_ON_SUCCESS], [{"event": "TaskCompleted", "action": "CompleteJob"}], ""),
        ([{"event": "PodEvicted", "action": "RestartJob"}], [], ""),
    ],
)
def test_warns_of_policy_that_restarts_after_success(job: Any, task: Any, where: str) -> None:
    document = changed(changed(volcano(), "spec.policies", job), "spec.tasks.1.policies", task)
    document = changed(document, "spec.tasks.0.template.spec.restartPolicy", "Always")
    found = [one for one in warnings(document) if "have succeeded" in one.message]
    assert [one.path for one in found] == [where] * bool(where)
    assert all("then the job has failed" in one.message and "CompleteJob" in one.hint for one in found)


def test_warns_of_pod_failed_policy_with_in_place_restarts():
    document = changed(volcano(), "spec.tasks.0.template.spec.restartPolicy", "OnFailure")
    document = changed(document, "spec.tasks.0.policies", [{"event": "PodFailed", "action": "AbortJob"}])
    (found,) = warnings(document)
    assert found.path == "spec.tasks[0].template.spec.restartPolicy"


def test_warns_of_missing_replicas_field():
    document = changed(changed(volcano(), "spec.tasks.0.replicas", ...), "spec.minAvailable", 2)
    assert paths(warnings(document)) == ["spec.tasks[0].replicas"]


def test_suspending_sets_annotation():
    assert suspend_patch(volcano(), True) == {"metadata": {"annotations": {"tf-dist.dev/suspend": "true"}}}


def test_defaults_do_not_change_parsed_job():
    assert read(defaulted(volcano())) == read(volcano()) == parse(volcano()).job
