"""What an error of the driver or the server means here.

Four kinds. *Unreachable*: the connection is gone or the server cannot work now; the effect is unknown and the call may
be repeated. *Repeatable*: the transaction was rolled back because it met another one. *Refused*: the server or the
driver does not take a value. *Wrong*: someone must change something; the message says what.
"""

from __future__ import annotations

from typing import Final

import asyncpg
from asyncpg.exceptions._base import DataError as ArgumentError

from perdure.errors import SchemaOutdated, StoreError, StoreUnavailable
from perdure.store.postgres.address import Address

DRIVER: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""All that a call of the driver raises."""

UNREACHABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.PostgresSystemError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.InternalClientError,  # the driver has lost track of its connection, as when the server ends it unasked
)

REPEATABLE: Final = (
    asyncpg.exceptions.DeadlockDetectedError,
    asyncpg.exceptions.SerializationError,
    asyncpg.exceptions.LockNotAvailableError,
)

REFUSED: Final = (
    ArgumentError,
    asyncpg.exceptions.DataError,
    asyncpg.exceptions.IntegrityConstraintViolationError,
    asyncpg.exceptions.ProgramLimitExceededError,
)
"""The driver's own refusal of an argument, and classes 22, 23 and 54 of the server."""

UNCHANGED: Final[tuple[type[Exception], ...]] = (*REPEATABLE, *REFUSED)
"""What the caller treats by the driver's own name."""

NO_SCHEMA: Final = (
    asyncpg.exceptions.UndefinedTableError,
    asyncpg.exceptions.UndefinedFunctionError,
    asyncpg.exceptions.UndefinedColumnError,
    asyncpg.exceptions.InvalidSchemaNameError,
)

SETTING: Final = (
    asyncpg.exceptions.UndefinedObjectError,
    asyncpg.exceptions.InvalidParameterValueError,
    asyncpg.exceptions.CantChangeRuntimeParamError,
)
"""While connecting: a setting in the URL that the server does not have, or not so."""

NO_ACCESS: Final = (
    asyncpg.exceptions.InvalidAuthorizationSpecificationError,
    asyncpg.exceptions.InsufficientPrivilegeError,
)


def translate(error: Exception, address: Address) -> Exception:
    """The error as perdure names it; a refusal and what may be repeated stay as they are."""
    url = address.public
    if isinstance(error, UNCHANGED):
        return error
    if isinstance(error, NO_ACCESS):
        return StoreError(f"{url} refuses this user: {error}. Check user, password and grants.", url=url)
    if isinstance(error, asyncpg.exceptions.InvalidCatalogNameError):
        return StoreError(f"{url} has no such database: {error}. Create it, or correct the URL.", url=url)
    if isinstance(error, NO_SCHEMA):
        return SchemaOutdated(f"{url} lacks what this perdure needs: {error}. Run `perdure migrate`.", url=url)
    if isinstance(error, UNREACHABLE):
        return unavailable(error, address)
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return StoreError(f"{url} is not understood: {error}", url=url)
    if isinstance(error, asyncpg.InterfaceError):
        return unavailable(error, address)
    return StoreError(f"{url}: {type(error).__name__}: {error}", url=url)


def unavailable(error: Exception, address: Address) -> StoreUnavailable:
    """The database cannot be reached, or not be used now."""
    what = str(error) or type(error).__name__
    remedy = "Is the server running, and does it accept connections from here?"
    return StoreUnavailable(f"cannot reach {address.public}: {what}. {remedy}", url=address.public)
