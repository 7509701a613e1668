"""lockstep.doctor: which code encodes rows."""

from types import ModuleType

from cdc.model.finding import Severity
from cdc.protocol.compiled_code import CompiledCode
from lockstep.doctor.examine import rows_finding


def test_compiled_code_is_fine_and_needs_nothing() -> None:
    finding = rows_finding("rows are encoded by compiled code", CompiledCode(ModuleType("kernel")))
    assert (finding.severity, finding.what, finding.fix) == (Severity.OK, "rows are encoded by compiled code", "")


def test_python_code_is_fine_too_and_it_says_why_and_what_would_change_that() -> None:
    code = CompiledCode(None, "it isn't here")
    finding = rows_finding(f"rows are encoded by {code}", code)
    assert (finding.severity, finding.what) == (Severity.OK, "rows are encoded by Python code: it isn't here")
    assert "make setup" in finding.fix
