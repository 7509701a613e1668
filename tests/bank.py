"""A bank: transfers between accounts in two tables, and the accounts that existed at each commit."""

import random
from collections.abc import Callable

from tests.events import Change, Delete, Put
from tests.view_queries import column, shape

CHECKING = shape("checking", ["id"], column("id", "int4"), column("balance", "int8"))
SAVINGS = shape("savings", ["id"], column("id", "int4"), column("balance", "int8"))
OPENED = 40
State = frozenset[tuple[str, int, int]]


class Bank:
    """The accounts, and how they change. ``states`` has the accounts that existed, commit by commit."""

    def __init__(self, write: Callable[[list[list[Change]]], object], seed: int) -> None:
        """``write`` commits one transaction, published in these parts."""
        self._publish = write
        self._chance = random.Random(seed)
        self._balances: dict[tuple[str, int], int] = {}
        self.states: list[State] = [frozenset()]
        self._write([[self._set("c", number, 100) for number in range(OPENED)]])

    def transfer(self) -> None:
        """Transfer from a checking to a savings account, maybe a new one, or back. Empty accounts are closed."""
        here = self._chance.choice([account for account, balance in self._balances.items() if balance])
        there = "s" if here[0] == "c" else "c", self._chance.randrange(OPENED)
        amount = self._chance.choice([self._balances[here], self._chance.randint(1, self._balances[here])])
        left = self._balances[here] - amount
        received = self._set(*there, self._balances.get(there, 0) + amount)
        self._write([[self._set(*here, left) if left else self._close(*here), received]])

    def transfer_everything(self) -> None:
        """Move a part of each account to another one, in one transaction that is published in parts."""
        accounts = list(self._balances)
        self._chance.shuffle(accounts)
        moved = [self._chance.randint(0, self._balances[account]) for account in accounts]
        changes = [
            self._set(*account, self._balances[account] - moved[at] + moved[at - 1])
            for at, account in enumerate(accounts)
        ]
        size = max(1, len(changes) // 5)
        self._write([changes[at : at + size] for at in range(0, len(changes), size)])

    def deposit(self) -> None:
        account = self._chance.choice(list(self._balances))
        self._write([[self._set(*account, self._balances[account] + 1)]])

    def work(self, transactions: int) -> None:
        for number in range(transactions):
            (self.transfer, self.transfer, self.transfer_everything, self.deposit)[number % 4]()

    def _set(self, kind: str, number: int, balance: int) -> Put:
        self._balances[kind, number] = balance
        return Put(CHECKING if kind == "c" else SAVINGS, {"id": number, "balance": balance})

    def _close(self, kind: str, number: int) -> Delete:
        del self._balances[kind, number]
        return Delete(CHECKING if kind == "c" else SAVINGS, {"id": number})

    def _write(self, parts: list[list[Change]]) -> None:
        # Before anybody can see it.
        self.states.append(frozenset((*account, balance) for account, balance in self._balances.items()))
        self._publish(parts)
