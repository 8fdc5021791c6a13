from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NewType,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pytest

from oplogue.errors import ConfigurationError, DocumentConversionError
from oplogue.model.conversion import document_converter, takes_documents

T = TypeVar("T")
Cents = NewType("Cents", int)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Status(Enum):
    PAID = "paid"
    SENT = "sent"


class Level(IntEnum):
    LOW = 1


class Typed(TypedDict):
    status: str


class Checked(Protocol):
    """Nothing can be checked against it when the program runs."""


class ObjectIdLike:
    pass


class DecimalLike:
    def to_decimal(self) -> Decimal:
        return Decimal("1.50")


class BinaryLike(bytes):
    def as_uuid(self) -> UUID:
        return UUID(bytes=bytes(self))


@dataclass
class Item:
    sku: str
    price: float


@dataclass
class Order:
    id: int
    items: list[Item]
    note: str | None = None
    tags: tuple[str, ...] = ()
    kind: ClassVar[str] = "order"
    total: float = field(init=False, default=0.0)


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list["Node"])


@dataclass(frozen=True, slots=True)
class Strict:
    amount: int
    _: KW_ONLY
    unit: str = "EUR"

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("amount is negative")


@dataclass
class Page(Generic[T]):
    items: list[T]


def field_of(annotation: object, value: object) -> object:
    """What a dataclass's field of that annotation holds."""
    holder = dataclass(type("Holder", (), {"__annotations__": {"value": annotation}}))
    converted: Any = document_converter(holder, {})({"value": value})
    return converted.value


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        dict,
        dict[str, Any],
        Mapping,
        Mapping[str, object],
        MutableMapping[str, Any],
        Typed,
        Annotated[dict[str, Any], "x"],
        Optional[dict[str, Any]],  # noqa: UP045 - the old form is in use
        T,
    ],
)
def test_a_handler_that_asks_for_a_mapping_gets_the_document_itself(annotation: object) -> None:
    document = {"_id": 1, "status": "paid"}
    assert document_converter(annotation, {})(document) is document


def test_a_dictionary_of_the_users_kind_is_made() -> None:
    made = document_converter(OrderedDict[str, Any], {})({"b": 1, "a": 2})
    assert made == OrderedDict(b=1, a=2)
    assert type(made) is OrderedDict


def test_a_dataclass_is_made_field_by_field() -> None:
    document = {"_id": 7, "items": [{"sku": "x", "price": 5, "more": 1}], "tags": ["a", "b"], "unknown": 1}
    assert document_converter(Order, {})(document) == Order(7, [Item("x", 5.0)], None, ("a", "b"))


def test_id_is_filled_from_the_documents_own_id_first() -> None:
    assert document_converter(Order, {})({"_id": 7, "id": 8, "items": []}) == Order(8, [])


def test_a_class_may_hold_itself() -> None:
    document = {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]}
    assert document_converter(Node, {})(document) == Node("a", [Node("b", [Node("c")])])


def test_an_instance_made_by_the_clients_codec_is_kept() -> None:
    item = Item("x", 1.0)
    converted: Any = document_converter(Order, {})({"_id": 1, "items": [item]})
    assert converted.items[0] is item


def test_a_generic_dataclass_takes_its_parameters_as_they_come() -> None:
    assert document_converter(Page[int], {})({"items": [1, "x"]}) == Page([1, "x"])


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 5, 5),
        (int, 5.0, 5),
        (float, 5, 5.0),
        (float, 0.5, 0.5),
        (str, "x", "x"),
        (bool, True, True),
        (bytes, b"x", b"x"),
        (datetime, NOON, NOON),
        (date, NOON, date(2026, 1, 1)),
        (Decimal, DecimalLike(), Decimal("1.50")),
        (Decimal, 5, Decimal(5)),
        (UUID, BinaryLike(b"\1" * 16), UUID(bytes=b"\1" * 16)),
        (Cents, 5, 5),
        (Annotated[int, "x"], 5, 5),
        (None, None, None),
        (int | None, None, None),
        (Optional[int], 5, 5),  # noqa: UP045 - the old form is in use
        (Union[int, str], "x", "x"),  # noqa: UP007 - the old form is in use
        (float | int, 5, 5),
        (int | float, 0.5, 0.5),
        (str | list[str], ["x"], ["x"]),
        (Item | str, {"sku": "x", "price": 1}, Item("x", 1.0)),
        (Status, "paid", Status.PAID),
        (Level, 1, Level.LOW),
        (Literal["a", 1], 1, 1),
        (list, [1, "x"], [1, "x"]),
        (list[Status], ["paid"], [Status.PAID]),
        (Sequence[int], [1.0], [1]),
        (set[str], ["a", "a"], {"a"}),
        (frozenset[int], [1], frozenset({1})),
        (tuple, [1, "x"], (1, "x")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[str, int], ["a", 1], ("a", 1)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[Status, int], {"paid": 1}, {Status.PAID: 1}),
        (dict[str, list[Item]], {"a": [{"sku": "x", "price": 1}]}, {"a": [Item("x", 1.0)]}),
        (Any, {"a": [1]}, {"a": [1]}),
    ],
)
def test_fields_are_converted_by_their_annotations(
    annotation: object, value: object, expected: object
) -> None:
    converted = field_of(annotation, value)
    assert converted == expected
    assert type(converted) is type(expected)


def test_a_value_of_any_other_class_is_checked_only() -> None:
    value = ObjectIdLike()
    assert field_of(ObjectIdLike, value) is value
    with pytest.raises(DocumentConversionError, match="expected ObjectIdLike, got str 'x'"):
        field_of(ObjectIdLike, "x")


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", "Holder.value: expected int, got str '5'"),
        (int, 5.5, "Holder.value: expected int, got float 5.5"),
        (int, True, "Holder.value: expected int, got bool True"),
        (int, None, "Holder.value: expected int, got None"),
        (float, True, "Holder.value: expected float, got bool True"),
        (bool, 1, "Holder.value: expected bool, got int 1"),
        (str, 5, "Holder.value: expected str, got int 5"),
        (datetime, "2026", "Holder.value: expected datetime, got str '2026'"),
        (date, "2026", "Holder.value: expected date, got str '2026'"),
        (Decimal, 0.5, "Holder.value: expected Decimal, got float 0.5"),
        (UUID, "x", "Holder.value: expected UUID, got str 'x'"),
        (UUID, BinaryLike(b"x"), "Holder.value: expected UUID, got BinaryLike b'x'"),
        (int | None, "x", "Holder.value: expected int, got str 'x'"),
        (int | str, 0.5, "Holder.value: expected int | str, got float 0.5"),
        (int | str, None, "Holder.value: expected int | str, got None"),
        (Item | None, {"sku": "x"}, "Holder.value.price: expected float, but the field is missing"),
        (Status, "lost", "Holder.value: expected Status ('paid', 'sent'), got str 'lost'"),
        (Literal["a", 1], True, "Holder.value: expected Literal['a', 1], got bool True"),
        (list[int], "ab", "Holder.value: expected list[int], got str 'ab'"),
        (list[int], [1, "x"], "Holder.value[1]: expected int, got str 'x'"),
        (set[Any], [["a"]], "Holder.value: unhashable type: 'list'"),
        (tuple[int, int], [1], "Holder.value: expected tuple[int, int], got list [1]"),
        (tuple[int, int], [1, "x"], "Holder.value[1]: expected int, got str 'x'"),
        (dict[str, int], [], "Holder.value: expected dict[str, int], got list []"),
        (dict[str, int], {"a": "x"}, "Holder.value['a']: expected int, got str 'x'"),
        (dict[Level, int], {"a": 1}, "Holder.value, key 'a': expected Level (1), got str 'a'"),
        (Item, "x", "Holder.value: expected Item, got str 'x'"),
        (list[Item], [{"sku": "a", "price": "x"}], "Holder.value[0].price: expected float, got str 'x'"),
        (Strict, {"amount": -1}, "Holder.value: amount is negative"),
        (str, 10**200, "Holder.value: expected str, got int 1" + "0" * 78 + "…"),
    ],
)
def test_what_does_not_fit_names_the_field(annotation: object, value: object, message: str) -> None:
    with pytest.raises(DocumentConversionError) as caught:
        field_of(annotation, value)
    assert str(caught.value) == message


def test_paths_begin_with_the_class() -> None:
    document = {
        "_id": 1,
        "items": [{"sku": "a", "price": 1}, {"sku": "b", "price": 1}, {"sku": "c", "price": "x"}],
    }
    for annotation in (Order, Order | None, Annotated[Order, "x"]):
        with pytest.raises(DocumentConversionError) as caught:
            document_converter(annotation, {})(document)
        assert str(caught.value) == "Order.items[2].price: expected float, got str 'x'"


def test_paths_of_a_mapping_begin_with_the_document() -> None:
    with pytest.raises(DocumentConversionError) as caught:
        document_converter(dict[str, int], {})({"a": "x"})
    assert str(caught.value) == "document['a']: expected int, got str 'x'"


def test_a_union_takes_what_fits_first() -> None:
    convert = document_converter(Item | Order | dict[str, Any], {})
    assert convert({"sku": "x", "price": 1}) == Item("x", 1.0)
    assert convert({"_id": 1, "items": []}) == Order(1, [])
    assert convert({"_id": 1}) == {"_id": 1}


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        str,
        None,
        list[dict[str, Any]],
        Literal["a"],
        Status,
        ObjectIdLike,
        int | None,
        tuple[Item, ...],
        bytes,
        type,
    ],
)
def test_what_no_document_can_be_made_into_is_refused(annotation: object) -> None:
    assert not takes_documents(annotation)
    with pytest.raises(ConfigurationError, match="nothing converts to"):
        document_converter(annotation, {})


def test_a_field_that_nothing_converts_to_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="nothing converts to"):
        field_of(Checked, 1)


def test_a_field_with_an_unknown_name_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"annotations of Holder can't be resolved.*Missing"):
        field_of("list[Missing]", [])
