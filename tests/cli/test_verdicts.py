"""The table of verdicts on the terminal."""

from dataclasses import replace
from pathlib import Path

import pytest
from analysis.surfaces import FINE, small_study, table_of

from expertp.analysis.judging import tail_of_look
from expertp.analysis.transfer import judge
from expertp.cli.verdicts import verdict_table


def test_the_confidence_of_a_cost_is_printed_where_it_is_not_95_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plain = judge(table_of(small_study(FINE), optimum=-6.0))
    (own,) = plain.axes
    looked_at = replace(plain, axes=(replace(own, tail=tail_of_look(2)),))
    assert "] (99.2%)" in verdict_table(looked_at, Path())
    assert "%)" not in verdict_table(plain, Path()).splitlines()[2]
