"""What becomes of records whose document is gone, of records under a new handler, and what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from oplogue.errors import ConfigurationError
from oplogue.model.durations import DurationLike, parse_duration

DeleteWhen = Literal["source_document_deleted", "source_document_deleted_or_no_longer_matching", "never"]
OnHandlerVersionChange = Literal["none", "reprocess_failed", "reprocess_all"]
ScrapeMode = Literal["cluster", "local"]
ReadPreference = Literal["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"]

HIGHEST_VERSION = 2**31 - 1
_SHORTEST_PUSH = timedelta(milliseconds=1)


@dataclass(frozen=True, init=False)
class CleanupPolicy:
    """When a record is deleted whose document is gone, and how long it is kept until then.

    >>> CleanupPolicy(keep_for="7d").keep_for
    datetime.timedelta(days=7)
    """

    delete_when: DeleteWhen
    keep_for: timedelta

    def __init__(
        self, delete_when: DeleteWhen = "source_document_deleted", keep_for: DurationLike = "24h"
    ) -> None:
        _one_of(delete_when, get_args(DeleteWhen), option="delete_when")
        object.__setattr__(self, "delete_when", delete_when)
        object.__setattr__(self, "keep_for", parse_duration(keep_for, option="keep_for"))


@dataclass(frozen=True)
class Evolution:
    """What a deployment with a new handler, filter or projection does with the records that are there.

    >>> Evolution(handler_version=2, on_handler_version_change="reprocess_failed").reconcile_on_trigger_change
    True
    """

    handler_version: int = 1
    on_handler_version_change: OnHandlerVersionChange = "none"
    reconcile_on_trigger_change: bool = True

    def __post_init__(self) -> None:
        _version(self.handler_version, option="handler_version")
        _one_of(
            self.on_handler_version_change,
            get_args(OnHandlerVersionChange),
            option="on_handler_version_change",
        )
        _true_or_false(self.reconcile_on_trigger_change, option="reconcile_on_trigger_change")


@dataclass(frozen=True, init=False)
class Monitoring:
    """Whether metrics are kept, and for whom one instance answers.

    >>> Monitoring(scrape_mode="local").push_interval
    datetime.timedelta(seconds=60)
    """

    enabled: bool
    scrape_mode: ScrapeMode
    push_interval: timedelta
    read_preference: ReadPreference

    def __init__(
        self,
        enabled: bool = True,
        scrape_mode: ScrapeMode = "cluster",
        push_interval: DurationLike = "60s",
        read_preference: ReadPreference = "secondaryPreferred",
    ) -> None:
        _true_or_false(enabled, option="enabled")
        _one_of(scrape_mode, get_args(ScrapeMode), option="scrape_mode")
        _one_of(read_preference, get_args(ReadPreference), option="read_preference")
        interval = parse_duration(push_interval, option="push_interval", minimum=_SHORTEST_PUSH)
        object.__setattr__(self, "enabled", enabled)
        object.__setattr__(self, "scrape_mode", scrape_mode)
        object.__setattr__(self, "push_interval", interval)
        object.__setattr__(self, "read_preference", read_preference)


def _one_of(value: object, allowed: tuple[str, ...], *, option: str) -> None:
    if not isinstance(value, str) or value not in allowed:
        expected = " or ".join(repr(choice) for choice in allowed)
        raise ConfigurationError("no such choice", option=option, value=value, expected=expected)


def _true_or_false(value: object, *, option: str) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(
            "neither true nor false", option=option, value=value, expected="True or False"
        )


def _version(value: object, *, option: str) -> None:
    number = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if not 1 <= number <= HIGHEST_VERSION:
        raise ConfigurationError(
            "not a version", option=option, value=value, expected="a whole number from 1"
        )
