"""Shell lines that cannot work are recognised, those that can are left in peace."""

from __future__ import annotations

import pytest

from tests.core.dialects.documents import changed, paths, template, volcano, warnings
from tf_dist.core.dialects.volcano import unquoted_hosts

EXPORT = r"export TF_CONFIG={\"cluster\":{\"ps\":[${PS_HOST}],\"worker\":[${WORKER_HOST}]},\"task\":{\"type\":\"ps\"}}"
TUTORIAL = r"""
PS_HOST=`cat /etc/volcano/ps.host | sed 's/$/&:2222/g' | tr "\n" ","`;
WORKER_HOST=`cat /etc/volcano/worker.host | sed 's/$/&:2222/g' | tr "\n" ","`;
"""


def quoted(added: str) -> str:
    return TUTORIAL.replace("sed 's/$/&:2222/g'", f"sed 's/$/&:2222/g' | {added}")


@pytest.mark.parametrize(
    "prologue",
    [
        TUTORIAL,
        TUTORIAL.replace("`;", ")").replace("`", "$("),
        "PS_HOST=$(sed s/$/:2222/ /etc/volcano/ps.host)\nWORKER_HOST=$(paste -sd, < /etc/volcano/worker.host)",
        'P=$(cat /etc/volcano/ps.host)\nPS_HOST=`echo $P | tr " " ","`\nWORKER_HOST=`cat /etc/volcano/worker.host`',
    ],
)
def test_hosts_without_quotes(prologue: str):
    assert unquoted_hosts(prologue + EXPORT) == ["PS_HOST", "WORKER_HOST"]
    assert unquoted_hosts(prologue + EXPORT.replace("${PS_HOST}", " $PS_HOST ")) == ["PS_HOST", "WORKER_HOST"]


@pytest.mark.parametrize(
    "text",
    [
        quoted("""sed 's/^/"/;s/$/"/'""") + EXPORT,
        quoted("""sed 's/.*/"&"/'""") + EXPORT,
        quoted(r"""sed "s/^/\"/;s/$/\"/" """) + EXPORT,
        quoted("""awk '{print "\\"" $0 "\\""}'""") + EXPORT,
        quoted("jq -R .") + EXPORT,
        TUTORIAL + 'PS_HOST=`echo $PS_HOST | sed \'s/,/","/g\'`\nWORKER_HOST=`echo "\\"$WORKER_HOST\\""`\n' + EXPORT,
        TUTORIAL + EXPORT.replace("${PS_HOST}", r"\"${PS_HOST}\"").replace("${WORKER_HOST}", r"\"${WORKER_HOST}\""),
        TUTORIAL + "echo [${PS_HOST}]",
        "python make_config.py",
        "",
    ],
)
def test_hosts_with_quotes_or_no_configuration(text: str):
    assert unquoted_hosts(text) == []


def test_the_variables_of_the_svc_plugin_have_no_quotes_either():
    text = r"""export TF_CONFIG="{\"cluster\":{\"ps\":[${VC_PS_HOSTS}]}}" """
    assert unquoted_hosts(text) == ["VC_PS_HOSTS"]


def test_a_long_word_takes_no_time():
    """Programs are passed as base64; a search that starts anew at each letter would take minutes."""
    assert unquoted_hosts(f"TF_CONFIG cluster {'A1' * 200_000}") == []
    assert unquoted_hosts("TF_CONFIG cluster " + "A=$(" * 2_000) == []


def task(script: str) -> dict[str, object]:
    pod = template(restartPolicy="Never")
    pod["spec"]["containers"][0] |= {"command": ["sh", "-c"], "args": [script]}
    return pod


def test_the_tutorials_own_job_is_warned_about_and_its_mended_form_is_not():
    document = changed(volcano(), "spec.tasks.0.template", task(TUTORIAL + EXPORT))
    found = warnings(document)
    assert paths(found) == ["spec.tasks[0].template.spec.containers[0].args"] * 2
    assert "sed" in found[0].hint
    mended = task(quoted("""sed 's/^/"/;s/$/"/'""") + EXPORT)
    assert warnings(changed(volcano(), "spec.tasks.0.template", mended)) == []


def test_files_and_variables_of_plugins_that_are_not_there():
    document = changed(volcano(), "spec.tasks.0.template", task("cat /etc/volcano/ps.host; echo $VK_TASK_INDEX"))
    assert warnings(document) == []
    found = warnings(changed(document, "spec.plugins", {}))
    assert [problem.hint for problem in found] == ["plugins: env: []", "plugins: svc: []"]
    own = task("echo $VK_TASK_INDEX")
    own["spec"]["containers"][0]["env"] = [{"name": "VK_TASK_INDEX", "value": "0"}]  # type: ignore[index]
    document = changed(volcano(), "spec.tasks.0.template", own)
    assert warnings(changed(document, "spec.plugins", {})) == []
