"""An environment with an older engine in front of this interpreter's: `python requirements/older.py DIRECTORY LOCK`.

Only what the lock file names is installed into it. Everything else is found behind it, in the environment that this
runs in, so that an older SGLang costs 240 MB and seconds in place of 2 GB and minutes.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path
from venv import EnvBuilder

BEHIND = "import site; site.addsitedir({!r})\n"


def main(directory: Path, lock: str) -> None:
    """Make it anew."""
    EnvBuilder(clear=True, with_pip=False).create(directory)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-compile", "-r", lock], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    # Last, so that pip has never seen the packages behind and cannot take one of them for what it should replace.
    (packages / "behind.pth").write_text(BEHIND.format(sysconfig.get_path("purelib")))
    compiled = [str(python), "-m", "compileall", "-q", "-j", "0", "-x", "/tests?/", str(packages)]
    # Some files of SGLang are for other versions of Python and cannot be compiled; they are not imported either.
    subprocess.run(compiled, check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2])
