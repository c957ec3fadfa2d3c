"""The documentation is complete: every command, option, finding, exit code and variable has its place."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dsv4ctl.app import COMMANDS
from dsv4ctl.doctor.check import all_checks
from dsv4ctl.doctor.codes import all_codes
from dsv4ctl.errors import ExitCode

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "dsv4ctl").rglob("*.py"))
FRAMEWORK = ROOT / "dsv4ctl" / "doctor" / "check.py"


def options(command: Any) -> Iterator[str]:
    """The long names of a command's options, those of its subcommands too."""
    for sub in getattr(command, "commands", {}).values():
        yield from options(sub)
    for parameter in command.params:
        yield from (name for name in parameter.opts if name.startswith("--") and name != "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_that_names_every_option_and_its_exit_codes(name: str) -> None:
    page = (DOCS / "commands" / f"{name}.md").read_text()
    module = importlib.import_module(f"dsv4ctl.commands.{name.replace('-', '_')}")
    missing = [option for option in set(options(typer.main.get_command(module.app))) if option not in page]
    assert missing == []
    assert "xit" in page
    assert f"docs/commands/{name}.md" in (ROOT / "README.md").read_text()


def finding_codes() -> set[str]:
    """The first argument of every Finding(...) and Check(...) in the source. What makes findings of any check is left
    out."""
    codes: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "Check") and node.args:
                (first, *_) = node.args
                if path == FRAMEWORK and ast.unparse(first) == "self.code":
                    continue
                assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: a finding's code is written out"
                codes.add(str(first.value))
    return codes


def pages_of_findings() -> dict[str, str]:
    """By code."""
    return {path.stem: path.read_text() for path in (DOCS / "findings").glob("*.md") if path.name != "README.md"}


def row(page: str, name: str) -> str:
    """What a page's table says under a name."""
    found = re.search(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
    return found[1] if found else ""


def test_every_finding_has_a_page_and_every_page_a_finding() -> None:
    assert pages_of_findings().keys() == finding_codes()


def test_the_index_of_findings_has_each_once_and_says_by_what_it_is_seen() -> None:
    index = (DOCS / "findings" / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| .* \| (.*) \|$", index, re.MULTILINE)
    assert [code for code, _, _ in rows] == sorted(finding_codes())
    for code, link, seen_by in rows:
        page = row(pages_of_findings()[code], "seen by")
        assert link == code
        assert [command for command in seen_by.split(", ") if command not in page] == [], code
        assert ("`doctor" in seen_by) == ("`doctor" in page), code


def test_a_check_that_asks_a_host_may_come_to_know_nothing_and_its_page_says_so() -> None:
    pages = pages_of_findings()
    asking = [check.code for check in all_checks() if check.questions != ()]
    assert [code for code in asking if "unknown" not in row(pages[code], "severity")] == []


def test_every_exit_code_is_in_the_table() -> None:
    table = (DOCS / "exit-codes.md").read_text()
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {
        int(code) for code in ExitCode
    }


def test_every_variable_that_is_read_is_in_the_table() -> None:
    known = (DOCS / "environment.md").read_text()
    read = re.compile(r'environ(?:\.get\(|\[)\s*"([A-Z_]+)"|"(DSV4CTL_[A-Z_]+)"')
    names = {name for path in SOURCES for match in read.finditer(path.read_text()) for name in match.groups() if name}
    assert names
    assert [name for name in sorted(names) if name not in known] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_pages_of_what_doctor_can_be_asked_for_name_it_and_no_other_does() -> None:
    assert {code for code, page in pages_of_findings().items() if "`doctor" in row(page, "seen by")} == all_codes()
