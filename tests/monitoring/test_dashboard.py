"""The dashboard is one that Grafana can load, whose panels have their places, units and queries."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.monitoring.programs import DASHBOARD, DOCKER

GRAFANA = DOCKER / "grafana"
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
COLUMNS = 24  # of Grafana's grid
UNITS = {"none", "reqps", "s", "percentunit", "bytes", "celsius", "watt"}  # names of Grafana's
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_the_dashboard_has_an_id_a_schema_and_its_variables() -> None:
    assert (BOARD["uid"], BOARD["title"]) == ("warpcall", "Warpcall")
    assert "id" not in BOARD, "the number of a row in one Grafana's database"
    assert BOARD["schemaVersion"] == 41
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "instance"}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == (
        "datasource",
        "prometheus",
    )
    assert variables["instance"]["datasource"] == SOURCE


def test_panels_have_ids_titles_and_places_of_their_own() -> None:
    ids = [panel["id"] for panel in PANELS]
    titles = [panel["title"] for panel in PANELS]
    assert len({*ids}) == len(ids)
    assert len({*titles}) == len(titles)
    assert len(DRAWN) >= 12
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] >= 0, panel["title"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        assert min(at["y"] + 1, at["w"], at["h"]) > 0, panel["title"]
    for one, other in combinations(PANELS, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    """Whether two rectangles of the grid have a cell in common."""
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    return not (beside or below)


@pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_which_unit_from_which_source(panel: dict[str, Any]) -> None:
    config = panel["fieldConfig"]
    units = [config["defaults"]["unit"]]
    refs = [target["refId"] for target in panel["targets"]]
    for override in config["overrides"]:
        units += [one["value"] for one in override["properties"] if one["id"] == "unit"]
        assert override["matcher"]["options"] in refs

    assert panel["type"] in ("stat", "timeseries")
    assert panel["description"].endswith(".")
    assert {*units} <= UNITS
    assert refs
    assert len({*refs}) == len(refs)
    assert panel["datasource"] == SOURCE
    for target in panel["targets"]:
        assert target["datasource"] == SOURCE
        assert (
            "warpcall_" in target["expr"] or "Warpcall" in target["expr"] or "up{" in target["expr"]
        )
        assert 'instance=~"$instance"' in target["expr"] or "ALERTS" in target["expr"]
        grouped = {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
        for labels in re.findall(r"by \(([^)]+)\)", target["expr"]):
            assert grouped <= {*labels.split(", ")}, "a label of the legend is summed away"


def test_grafana_is_given_the_data_source_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/warpcall.yml").read_text())[
        "providers"
    ]
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    grafana = services["grafana"]
    folders = dict(volume.split(":")[:2] for volume in grafana["volumes"])

    assert source["type"] == SOURCE["type"]
    assert source["isDefault"]
    assert source["uid"] == BOARD["templating"]["list"][0]["current"]["value"]
    assert source["url"] == "http://prometheus:9090"
    assert (DOCKER / "grafana/dashboards/warpcall.json").exists()
    assert folders["./grafana/dashboards"] == provider["options"]["path"]
    for part in ("datasources", "dashboards"):
        assert folders[f"./grafana/provisioning/{part}"] == f"/etc/grafana/provisioning/{part}"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"


def test_the_profile_monitoring_has_what_the_files_name() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    config = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
    profile = {name for name, one in services.items() if one.get("profiles") == ["monitoring"]}
    (scraped,) = config["scrape_configs"]
    (sends,) = config["alerting"]["alertmanagers"]

    assert profile == {"prometheus", "alertmanager", "grafana"}
    assert scraped["static_configs"] == [{"targets": ["server:8000"]}]
    assert sends["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert services["cpu"]["networks"]["default"]["aliases"] == ["server"]
    for name in profile:
        for port in services[name]["ports"]:
            assert port.startswith("127.0.0.1:"), "they ask for no key"
