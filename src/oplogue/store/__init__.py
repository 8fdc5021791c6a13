"""Everything that knows MongoDB. No raw filter, update or pipeline is written elsewhere."""

from bson import Timestamp as ClusterTime
from pymongo.asynchronous.client_session import AsyncClientSession as Session

from oplogue.store.connection import Client, Database

__all__ = ["Client", "ClusterTime", "Database", "Session"]
