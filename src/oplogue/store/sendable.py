"""Definitions as the driver sends them.

A user's filter may hold what Python knows and BSON does not, or what BSON writes in more than one way (a UUID, by the
client's representation). The definition in force holds what goes over the wire: every leader plans by the same,
whatever its own client is set up for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bson
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

from oplogue.errors import ConfigurationError
from oplogue.model.definition import TaskDefinition
from oplogue.model.filters import OPTION as FILTER
from oplogue.model.filters import compile_filter
from oplogue.model.projection import OPTION as WATCHED
from oplogue.store.connection import Client

_BEFORE_A_CLIENT: CodecOptions[Any] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
_AS_IT_IS: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)


def sendable(definition: TaskDefinition, client: Client | None) -> TaskDefinition:
    """The definition with its values as they are sent; ConfigurationError for one that can't be."""
    codec = _BEFORE_A_CLIENT if client is None else client.codec_options
    return replace(
        definition,
        filter=compile_filter(_sent(definition, FILTER, definition.filter.raw, codec)),
        projection=replace(
            definition.projection,
            expression=_sent(definition, WATCHED, definition.projection.expression, codec),
        ),
    )


def as_sent(value: object, *, option: str, client: Client) -> Any:
    """A value that an operator asks by, as it is sent; ConfigurationError for one that can't be.

    A client that was told of no representation for UUIDs can't send any; here they are the standard ones.
    """
    codec = client.codec_options
    if codec.uuid_representation == UuidRepresentation.UNSPECIFIED:
        codec = codec.with_options(uuid_representation=UuidRepresentation.STANDARD)
    return _encoded(value, codec, option, None)


def _sent(definition: TaskDefinition, option: str, value: object, codec: CodecOptions[Any]) -> Any:
    return _encoded(value, codec, option, definition.task)


def _encoded(value: object, codec: CodecOptions[Any], option: str, task: str | None) -> Any:
    try:
        sent = bson.BSON(bson.encode({"v": value}, codec_options=codec))
        return sent.decode(_AS_IT_IS)["v"]
    except (BSONError, OverflowError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the database can't hold it: {error}",
            option=option,
            value=value,
            expected="values that BSON has",
            task=task,
        ) from None
