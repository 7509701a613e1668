"""The files of the web pages: what comes from elsewhere is what was locked, and nothing is asked of another server."""

import hashlib
import re
from pathlib import Path

import pytest

LOCKSTEP = Path(__file__).parents[4] / "lockstep"
STATIC = LOCKSTEP / "dashboard" / "static"
OF_DEMO = LOCKSTEP / "demo" / "static"
VENDOR = STATIC / "vendor"
OURS = sorted(
    path
    for directory in (STATIC, OF_DEMO)
    for path in directory.rglob("*")
    if path.suffix in {".js", ".css", ".html"} and path.parent != VENDOR
)


def locked() -> dict[str, str]:
    """The hash of each file by its name."""
    lines = (VENDOR / "vendor.lock").read_text(encoding="utf-8").splitlines()
    entries = [line.split() for line in lines if line and not line.startswith("#")]
    assert all(len(entry) == 5 for entry in entries)
    return {name: sha256 for _, _, _, name, sha256 in entries}


def test_every_vendored_file_is_the_locked_one() -> None:
    here = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir() if path.suffix != ".lock"
    }
    assert here == locked()


def test_every_vendored_package_has_its_licence() -> None:
    packages = {name.split(".")[0] for name in locked()}
    assert packages == {name.removesuffix(".LICENSE") for name in locked() if name.endswith(".LICENSE")}


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(LOCKSTEP)))
def test_a_file_of_the_page_needs_no_other_server_and_no_inline_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?://\S+|\bstyle=|innerHTML|\beval\(|<script>", text) == []


def where(path: Path, name: str) -> Path:
    """The file of a relative address in this one. The demo's are served below /demo/timeline/static."""
    is_of_dashboard = OF_DEMO in path.parents and name.startswith("../../../static/")
    return STATIC / name.removeprefix("../../../static/") if is_of_dashboard else path.parent / name


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(LOCKSTEP)))
def test_what_a_module_imports_is_there(path: Path) -> None:
    names = re.findall(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']|url\("([^"]+)"\)""", path.read_text("utf-8"))
    assert [name for pair in names for name in pair if name and not where(path, name).is_file()] == []


def test_every_name_that_a_module_imports_is_one_that_the_other_exports() -> None:
    """A page whose module lacks one stays empty, and only its browser says so."""
    found = 0
    for file in (path for path in OURS if path.suffix == ".js"):
        for names, source in re.findall(r'import \{([^}]*)\} from "([^"]+)"', file.read_text(encoding="utf-8")):
            # The server has the page's files at /static, which is beside no page of the demo's.
            served = STATIC / source.rpartition("static/")[2] if "static/" in source else file.parent / source
            text = served.read_text(encoding="utf-8")
            exported = set(re.findall(r"^export (?:async )?(?:function|const|class|let) (\w+)", text, re.MULTILINE))
            wanted = {name.strip().split(" as ")[0] for name in names.split(",") if name.strip()}
            assert wanted <= exported, f"{file.name} imports {wanted - exported} from {source}"
            found += len(wanted)
    assert found > 50
