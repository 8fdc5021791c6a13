"""Which fields an aggregation expression reads, and which changed keys can touch a field.

Pruning drops an update in the stream if no key of its ``updateDescription`` can touch a field that a task's
filter or projection reads. A field too many costs a needless plan; a field too few loses an event. Whatever
is not known to read only what it names therefore makes the inputs unknown (``None``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oplogue.model.documents import is_array, is_document

LONGEST_PATTERN = 16_000
"""In bytes. The server's regex compiler gave up at 26,700; a longer alternation is widened instead."""

EVERY_KEY = "^"

_LITERALS = frozenset({"$literal", "$const"})

_CONSTANT_VARIABLES = frozenset({"NOW", "CLUSTER_TIME", "REMOVE", "DESCEND", "PRUNE", "KEEP"})

# Operators whose result depends on their operands alone. Left out on purpose: $getField, $setField and
# $unsetField (names that no path can express), $meta, $function, $accumulator, $rand.
_TRANSPARENT_NAMES = """
    abs acos acosh add allElementsTrue and anyElementTrue arrayElemAt arrayToObject asin asinh atan
    atan2 atanh  avg binarySize bitAnd bitNot bitOr bitXor bsonSize ceil cmp concat concatArrays cond
    convert cos cosh  dateAdd dateDiff dateFromParts dateFromString dateSubtract dateToParts
    dateToString dateTrunc dayOfMonth  dayOfWeek dayOfYear degreesToRadians divide eq exp filter first
    firstN floor gt gte hour ifNull in  indexOfArray indexOfBytes indexOfCP isArray isNumber
    isoDayOfWeek isoWeek isoWeekYear last lastN let ln log  log10 lt lte ltrim map max maxN median
    mergeObjects millisecond min minN minute mod month multiply ne not  objectToArray or percentile pow
    radiansToDegrees range reduce regexFind regexFindAll regexMatch replaceAll  replaceOne reverseArray
    round rtrim second setDifference setEquals setIntersection setIsSubset setUnion sin  sinh size slice
    sortArray split sqrt stdDevPop stdDevSamp strLenBytes strLenCP strcasecmp substr  substrBytes
    substrCP subtract sum switch tan tanh toBool toDate toDecimal toDouble toInt toLong toLower
    toObjectId toString toUpper trim trunc tsIncrement tsSecond type week year zip
"""
_TRANSPARENT = frozenset(f"${name}" for name in re.findall(r"\w+", _TRANSPARENT_NAMES))


def expression_inputs(expression: object) -> frozenset[str] | None:
    """The dotted paths of the document that the expression reads; None: the whole of it, or unknown.

    >>> sorted(expression_inputs({"$gt": ["$total", {"$sum": "$items.price"}]}))
    ['items.price', 'total']
    >>> expression_inputs({"$getField": "total"}) is None
    True
    """
    found: set[str] = set()
    return frozenset(found) if _collect(expression, found) else None


def is_dynamic(expression: object) -> bool:
    """Whether the expression's result depends on the time or on chance.

    >>> is_dynamic({"$lt": ["$dueAt", "$$NOW"]})
    True
    >>> is_dynamic({"$literal": "$$NOW"})
    False
    """
    if isinstance(expression, str):
        return expression.split(".", 1)[0] in ("$$NOW", "$$CLUSTER_TIME")
    if is_array(expression):
        return any(is_dynamic(member) for member in expression)
    if is_document(expression):
        return any(
            key in ("$rand", "$sampleRate") or (key not in _LITERALS and is_dynamic(member))
            for key, member in expression.items()
        )
    return False


def key_pattern(path: str) -> str:
    """A regex for the changed keys that can touch the path: the path itself, its parents and its children.

    A numeric segment may be the place in an array, so it is ignored, in the path and in the keys alike. Only
    the first segment cannot be one: a document is no array.

    >>> import re
    >>> pattern = re.compile(key_pattern("items.price"))
    >>> [bool(pattern.search(key)) for key in ("items", "items.0", "items.0.price", "items.qty", "itemsets")]
    [True, True, True, False, False]
    """
    first, *rest = _names(path)
    tail = r"(?:$|\.)"
    for name in reversed(rest):
        tail = rf"(?:$|\.{_segment(name)}{tail})"
    return f"^{_segment(first)}{tail}"


def merge_patterns(paths: Iterable[str]) -> str | None:
    """One regex for the keys that can touch any of the paths; None: no key matters.

    >>> merge_patterns(["total", "items.price", "items"]) == f"{key_pattern('items')}|{key_pattern('total')}"
    True
    """
    wanted = {tuple(_names(path)) for path in paths}
    if not wanted:
        return None
    pattern = _alternation(wanted)
    if _too_long(pattern):
        pattern = _alternation({names[:1] for names in wanted})
    return EVERY_KEY if _too_long(pattern) else pattern


def _alternation(wanted: set[tuple[str, ...]]) -> str:
    outermost = [
        names for names in wanted if not any(names[:length] in wanted for length in range(1, len(names)))
    ]
    return "|".join(key_pattern(".".join(names)) for names in sorted(outermost))


def _too_long(pattern: str) -> bool:
    return len(pattern.encode()) > LONGEST_PATTERN


def _names(path: str) -> list[str]:
    first, *rest = path.split(".")
    return [first, *(name for name in rest if not _is_index(name))]


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _segment(name: str) -> str:
    return rf"{re.escape(name)}(?:\.[0-9]+)*"


def _collect(node: object, found: set[str]) -> bool:
    """Add the paths that the node reads; False if they cannot be known."""
    if isinstance(node, str):
        return _collect_path(node, found)
    if is_array(node):
        return all(_collect(member, found) for member in node)
    if is_document(node):
        return _collect_document(node, found)
    return True


def _collect_path(text: str, found: set[str]) -> bool:
    if not text.startswith("$"):
        return True
    if not text.startswith("$$"):
        found.add(text[1:])
        return len(text) > 1
    name, _, path = text[2:].partition(".")
    if name in ("ROOT", "CURRENT"):
        found.add(path)
        return bool(path)
    # What a user's variable holds was collected where it was bound.
    return name in _CONSTANT_VARIABLES or not name[:1].isupper()


def _collect_document(document: Mapping[str, object], found: set[str]) -> bool:
    operators = [key for key in document if key.startswith("$")]
    if not operators:
        return all(_collect(member, found) for member in document.values())
    operator, operand = next(iter(document.items()))
    if len(document) > 1:
        return False
    if operator in _LITERALS:
        return True
    return operator in _TRANSPARENT and not _rebinds_current(operand) and _collect(operand, found)


def _rebinds_current(operand: object) -> bool:
    """A variable named CURRENT changes what "$field" means below it."""
    if not is_document(operand):
        return False
    variables = operand.get("vars")
    return operand.get("as") == "CURRENT" or (is_document(variables) and "CURRENT" in variables)
