"""One address for the metrics of several worker processes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from oplogue.cli.scrapes import joined, scraped
from oplogue.metrics import CONTENT_TYPE, Histogram, Reading, exposition
from oplogue.model import metrics


def exported(*readings: Reading) -> str:
    return exposition(readings).decode()


def told(text: str, *, of_all: bool = False) -> dict[str, Any]:
    return {"text": text, "of_all": of_all}


def test_processes_that_answer_for_themselves_are_told_apart() -> None:
    odd = 'a "quoted"} 1\u2028name\n{,}'
    runs = Histogram((0.1, 1.0), [2, 1, 1], 5.5)
    one = exported(Reading(metrics.RETRIES, (odd,), 3), Reading(metrics.LEADER, (), 1.0))
    two = exported(Reading(metrics.DURATION, ("sync", "failed"), runs), Reading(metrics.LEADER, (), 0.0))
    families = list(text_string_to_metric_families(joined({"1": one, "2": two})))
    assert len({family.name for family in families}) == len(families) == 3
    assert {family.name: family.type for family in families}["reactive_tasks_duration_seconds"] == "histogram"
    samples = {
        (sample.name, sample.labels["process"], sample.labels.get("le")): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples["reactive_tasks_leader", "1", None] == 1
    assert samples["reactive_tasks_leader", "2", None] == 0
    assert samples["reactive_tasks_duration_seconds_bucket", "2", "+Inf"] == 4
    assert samples["reactive_tasks_retries_total", "1", None] == 3
    (retries,) = (family for family in families if family.name == "reactive_tasks_retries")
    assert [sample.labels["task_name"] for sample in retries.samples] == [odd]


def test_a_process_that_is_alone_is_not_named() -> None:
    text = exported(Reading(metrics.LEADER, (), 1.0))
    answer = scraped({"": told(text)})
    assert (answer.status, answer.body.decode(), answer.kind) == (HTTPStatus.OK, text, CONTENT_TYPE)


def test_one_process_answers_for_the_cluster() -> None:
    text = exported(Reading(metrics.SLOTS, (), 8))
    other = exported(Reading(metrics.SLOTS, (), 7))
    answer = scraped(
        {"1": {"problem": "it is not started"}, "2": told(text, of_all=True), "3": told(other, of_all=True)}
    )
    assert answer.body.decode() == text


def test_where_nobody_can_tell_the_answer_says_why() -> None:
    assert scraped({}).body == b"no process has answered\n"
    answer = scraped({"1": {"problem": "monitoring is disabled"}, "2": {"problem": "monitoring is disabled"}})
    assert (answer.status, answer.body) == (HTTPStatus.SERVICE_UNAVAILABLE, b"monitoring is disabled\n")
