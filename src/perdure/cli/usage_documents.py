"""Usage and budgets as JSON documents. The names are a contract: they are `UsageInfo`'s and `BudgetInfo`'s. Pure."""

from __future__ import annotations

from perdure.cli.waiting_documents import Document, utc
from perdure.client.budgets import BudgetInfo
from perdure.client.usage import UsageInfo


def usage_document(info: UsageInfo) -> Document:
    """A sum. Its quantity is text: not every reader of JSON has exact numbers."""
    return {"group": info.group, "name": info.name, "quantity": f"{info.quantity:f}", "entries": info.entries}


def budget_document(info: BudgetInfo) -> Document:
    """A budget."""
    return {
        "name": info.name,
        "limits": dict(info.limits),
        "spent": dict(info.spent),
        "reserved": dict(info.reserved),
        "rev": info.rev,
        "created_at": utc(info.created_at),
        "updated_at": utc(info.updated_at),
        "by": info.by,
    }
