"""The error tree.

::

    OplogueError
    ├── ConfigurationError           a definition or an option is wrong; raised at registration or in start()
    ├── NotStartedError              the app has not been started, or was stopped
    ├── UnknownTaskError             no task of that name is defined
    ├── TaskConditionFailedError     the document is gone, left the filter, or its watched values moved on
    ├── LeaseLostError               this run no longer owns its record
    ├── LockNotAcquiredError         another holder kept the lock for the whole wait
    ├── LeadershipLostError          a newer term exists: this instance may no longer plan
    ├── DocumentConversionError      a document does not fit the handler's annotation
    └── EmbeddedServerError          no development mongod could be found, or it died

Errors of the driver pass through unchanged where the caller's own operation failed; the engine's own
operations are retried inside and reported as events.
"""

from __future__ import annotations


class OplogueError(Exception):
    """The root of every error that Oplogue raises.

    >>> issubclass(ConfigurationError, OplogueError)
    True
    """


class ConfigurationError(OplogueError):
    """A definition or an option is wrong. The message names the task, the option, the value and what would be right.

    >>> raise ConfigurationError("bad value", option="debounce", value="soon", expected="'1s'", task="sync-order")
    Traceback (most recent call last):
    oplogue.errors.ConfigurationError: task 'sync-order': debounce='soon': bad value; expected '1s'
    """

    def __init__(
        self,
        problem: str,
        *,
        option: str | None = None,
        value: object = None,
        expected: str | None = None,
        task: str | None = None,
    ) -> None:
        self.problem = problem
        self.option = option
        self.value = value
        self.expected = expected
        self.task = task
        super().__init__(problem)

    def __str__(self) -> str:
        where = f"task {self.task!r}: " if self.task is not None else ""
        what = f"{self.option}={_short(self.value)}: " if self.option is not None else ""
        right = f"; expected {self.expected}" if self.expected is not None else ""
        return f"{where}{what}{self.problem}{right}"

    def in_task(self, task: str) -> ConfigurationError:
        """The same error with the task's name in its message."""
        return ConfigurationError(
            self.problem,
            option=self.option,
            value=self.value,
            expected=self.expected,
            task=self.task or task,
        )

    def in_option(self, prefix: str) -> ConfigurationError:
        """The same error with the option written as a part of another (``retry_policy.interval``)."""
        option = prefix if self.option is None else f"{prefix}.{self.option}"
        return ConfigurationError(
            self.problem, option=option, value=self.value, expected=self.expected, task=self.task
        )


class NotStartedError(OplogueError):
    """The app has not been started, or was stopped."""


class UnknownTaskError(OplogueError):
    """No task of that name is defined."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.known = known
        hint = f"; known: {', '.join(known)}" if known else ""
        super().__init__(f"no task named {name!r}{hint}")


class TaskConditionFailedError(OplogueError):
    """The document no longer meets the condition that its run was planned for; the run is skipped, not failed."""

    def __init__(self, task: str, doc_id: object, reason: str) -> None:
        self.task = task
        self.doc_id = doc_id
        self.reason = reason
        super().__init__(f"task {task!r}, document {doc_id!r}: {reason}; the run is skipped")


class LeaseLostError(OplogueError):
    """This run no longer owns its record: nothing that it decides is written."""


class LockNotAcquiredError(OplogueError):
    """Another holder kept the lock for the whole wait."""

    def __init__(self, key: str, waited: float) -> None:
        self.key = key
        self.waited = waited
        super().__init__(f"lock {key!r} was still held by another after {waited:g} s")


class LeadershipLostError(OplogueError):
    """A newer term exists, or the lease could not be kept: this instance may no longer plan."""


class DocumentConversionError(OplogueError):
    """A document does not fit the handler's annotation."""


class EmbeddedServerError(OplogueError):
    """No development mongod could be found or started."""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
