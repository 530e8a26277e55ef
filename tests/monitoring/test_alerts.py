"""The alerts in docker/ are those that we mean: Prometheus' own programs check and run them."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.monitoring.programs import (
    ALERTMANAGER,
    DOCKER,
    PROMETHEUS,
    needs_prometheus,
    rules,
    with_examples,
)

DEPLOY = DOCKER.parent / "docs/deploy.md"


def output_of(*command: str | Path) -> str:
    """What a command that ends well prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_prometheus
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    folder = shutil.copytree(PROMETHEUS, tmp_path / "prometheus", dirs_exist_ok=True)
    (folder / "key").write_text("wc_any\n")

    said = output_of("promtool", "check", "config", folder / "prometheus.yml")

    assert f"{len(rules())} rules found" in said


@needs_prometheus
def test_each_alert_fires_and_does_not_fire_as_its_cases_say() -> None:
    assert "SUCCESS" in output_of("promtool", "test", "rules", PROMETHEUS / "alerts_test.yml")


@pytest.mark.slow
@needs_prometheus
def test_an_alert_that_waits_no_time_fails_its_cases(tmp_path: Path) -> None:
    """Each `for` is tested: without it an alert fires too soon."""
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    waiting = [rule["alert"] for rule in rules() if "for" in rule]
    written = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    tested = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())
    for name in waiting:
        alerts, cases = copy.deepcopy(written), copy.deepcopy(tested)
        (rule,) = (one for one in alerts["groups"][0]["rules"] if one["alert"] == name)
        del rule["for"]
        (tmp_path / "alerts.yml").write_text(json.dumps(alerts))  # JSON is YAML
        for case in cases["tests"]:  # only what is said of this alert: others cannot fail then
            case["alert_rule_test"] = [t for t in case["alert_rule_test"] if t["alertname"] == name]
        cases["tests"] = [case for case in cases["tests"] if case["alert_rule_test"]]
        (tmp_path / "alerts_test.yml").write_text(json.dumps(cases))

        command = ("promtool", "test", "rules", tmp_path / "alerts_test.yml")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        assert done.returncode != 0, name
        assert f"alertname: {name}" in done.stdout + done.stderr
    assert len(waiting) > 10


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """One that does not fire is another series of the same case, or another time."""
    cases = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    fires: dict[str, int] = {}
    silent: dict[str, bool] = {}
    for case in cases:
        for test in case["alert_rule_test"]:
            name, alerts = test["alertname"], test["exp_alerts"]
            fires[name] = fires.get(name, 0) + len(alerts)
            silent[name] = silent.get(name, False) or len(alerts) < len(case["input_series"])

    names = {rule["alert"] for rule in rules()}
    assert names == fires.keys()
    assert [name for name in names if not fires[name]] == []
    assert [name for name in names if not silent[name]] == []


def test_each_alert_has_a_severity_and_says_what_is_wrong_where() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert re.search(r"\{\{ \$(labels\.\w+|value)", rule["annotations"]["summary"])


def test_the_page_says_of_each_alert_what_to_do() -> None:
    rows = re.findall(
        r"^\| `(Warpcall\w+)` \| (page|ticket) \| .+ \| .+ \|$", DEPLOY.read_text(), re.MULTILINE
    )

    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in rules()]


@needs_prometheus
@pytest.mark.parametrize("with_receivers", [False, True])
def test_alertmanager_takes_its_configuration_and_the_examples_in_it(
    tmp_path: Path, with_receivers: bool
) -> None:
    text = with_examples() if with_receivers else ALERTMANAGER.read_text()
    (operators,) = yaml.safe_load(text)["receivers"]
    (tmp_path / "alertmanager.yml").write_text(text)

    said = output_of("amtool", "check-config", tmp_path / "alertmanager.yml")

    assert "1 receivers" in said
    kinds = {"webhook_configs", "email_configs"} if with_receivers else set()
    assert operators.keys() == {"name", *kinds}


def test_the_inhibitions_name_alerts_that_there_are() -> None:
    config = yaml.safe_load(ALERTMANAGER.read_text())
    named = {
        matcher.partition("=")[2].strip('"')
        for rule in config["inhibit_rules"]
        for matcher in (*rule["source_matchers"], *rule["target_matchers"])
    }

    assert named
    assert named <= {rule["alert"] for rule in rules()}
